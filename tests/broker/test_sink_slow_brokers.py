"""The Spark sink on brokers that are slower than its time-outs: an epoch is stored as it was
decided, whatever times out in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from typing import TypeVar

import pytest

from ledgermq.client.settings.partitioner import partition_of_key
from ledgermq.errors import DeadlineExceeded, OutcomeUnknown
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_spark.sink.cluster import Place
from ledgermq_spark.sink.driver import commit_epoch, wanted_decision
from ledgermq_spark.sink.epochs.decision import decide
from ledgermq_spark.sink.epochs.publishing import ATTEMPTS_MAX
from ledgermq_spark.sink.staged import Staged
from ledgermq_spark.sink.task import stage_rows
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.sink_places import BetweenReads, Step, place_of, rows_of

T = TypeVar("T")


def rows(partition: int, *values: str) -> list[str]:
    """For this one of two partitions of t."""
    key = next(key for key in map(str, count()) if partition_of_key(key.encode(), 2) == partition)
    return [f"t {key} {value}" for value in values]


async def staged(place: Place, *tasks: list[str]) -> list[Staged]:
    return [await stage_rows(place, "q", 0, rows_of(task)) for task in tasks]


def after(delay_s: float, step: Step | None = None) -> Step:
    async def run() -> None:
        await asyncio.sleep(delay_s)
        if step is not None:
            await step()

    return run


@in_cluster("a:1")
async def test_no_other_rows_take_the_sequences_of_rows_that_time_out_unsent(cluster: Cluster) -> None:
    """The owner is not known while the first rows of a partition grow too old, and is back before
    the next ones do.
    """
    await cluster.create("t", 2)
    async with place_of(cluster) as place:
        messages = await staged(place, rows(1, "a", "b"), rows(0, "c", "d"), rows(0, "e", "f"))

        async def kill() -> None:
            await cluster.stop("a:1", graceful=False)

        async def revive() -> None:
            await cluster.start("a:1")

        reviving = asyncio.create_task(after(22, revive)())  # type: ignore[arg-type]
        options = replace(place.options, buffer_bytes_max=100_000)
        slow = replace(place, store=BetweenReads(place.store, kill, after(1), after(15)), options=options)
        await commit_epoch(slow, "q", 0, messages, repeatable=True)
        await reviving
        assert await cluster.read_all("t", 0) == [b"c", b"d", b"e", b"f"]
        assert await cluster.read_all("t", 1) == [b"a", b"b"]


class SlowPuts(StoreWrapper):
    """Every conditional put takes `put_s`."""

    def __init__(self) -> None:
        super().__init__(MemoryStore("", virtual_sources(1000)))
        self.put_s = 0.0

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        if operation == "put_if_absent":
            await asyncio.sleep(self.put_s)
        return await step()


@virtual
async def test_an_epoch_that_takes_longer_than_any_of_its_rows_may_is_stored_as_long_as_it_gets_on() -> None:
    store = SlowPuts()
    async with cluster_of("a:1", store=store) as cluster, place_of(cluster) as place:
        await cluster.create("t", 2)
        values = [f"v{number:04}" + "-" * 200 for number in range(120)]
        messages = await staged(place, rows(0, *values))
        store.put_s = 5.0
        place = replace(place, options=replace(place.options, buffer_bytes_max=1_000_000))
        began_s = asyncio.get_running_loop().time()
        await commit_epoch(place, "q", 0, messages, repeatable=True)
        assert asyncio.get_running_loop().time() - began_s > (ATTEMPTS_MAX + 1) * place.options.delivery_timeout_s
        assert await cluster.read_all("t", 0) == [value.encode() for value in values]


@virtual
async def test_an_epoch_that_does_not_get_on_fails() -> None:
    store = SlowPuts()
    async with cluster_of("a:1", store=store) as cluster, place_of(cluster) as place:
        await cluster.create("t", 2)
        messages = await staged(place, rows(0, "a"))
        await decide(store, place.sources, "q", 0, await wanted_decision(place, messages))
        store.put_s = 1e9
        with pytest.raises((DeadlineExceeded, OutcomeUnknown)):
            await commit_epoch(place, "q", 0, [], repeatable=True)
        assert asyncio.get_running_loop().time() < (ATTEMPTS_MAX + 1) * place.options.delivery_timeout_s

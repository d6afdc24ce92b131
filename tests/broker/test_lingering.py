"""Lingering with default settings: a lone record does not wait, a burst becomes few batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from ledgermq.client.client import Client
from ledgermq.client.producing.producer import Producer
from ledgermq.client.settings.values import ClientSettings
from ledgermq_broker.ports.in_process import InProcessConnector
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import PUTS, StoreWrapper
from tests.broker.cluster import cluster_of, frame_of
from tests.virtual_time import virtual, virtual_sources

PUT_S = 0.03
T = TypeVar("T")


class SlowStore(StoreWrapper):
    """Every put takes PUT_S. `puts` counts those of segments."""

    def __init__(self) -> None:
        super().__init__(MemoryStore("", virtual_sources(1000)))
        self.puts = 0

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        if operation in PUTS:
            self.puts += operation == "put_if_absent"
            await asyncio.sleep(PUT_S)
        return await step()


@asynccontextmanager
async def after_the_first() -> AsyncIterator[tuple[SlowStore, Producer]]:
    """A producer whose first record is stored, so that all is known and open."""
    store = SlowStore()
    async with (
        cluster_of("a:1", store=store, flush_spacing_ms=0) as cluster,
        Client(InProcessConnector(cluster.network), ["a:1"], ClientSettings(), virtual_sources(1)) as client,
    ):
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            await producer.send("t", "first")
            yield store, producer


@pytest.mark.parametrize("apart_s", [0.008, 0.010, 0.1])
@virtual
async def test_records_that_come_apart_wait_for_one_put_only(apart_s: float) -> None:
    """Though the one before is still on its way: 5 ms more would be a third of the time to a near
    store.
    """

    async with after_the_first() as (_, producer):
        loop = asyncio.get_running_loop()

        async def wait_of_one() -> float:
            begun_s = loop.time()
            await producer.send("t", "x")
            return loop.time() - begun_s

        async with asyncio.TaskGroup() as group:
            waits = []
            for _ in range(20):
                waits.append(group.create_task(wait_of_one()))
                await asyncio.sleep(apart_s)
        assert max(wait.result() for wait in waits) < PUT_S + 0.002


@virtual
async def test_a_stream_of_records_becomes_few_batches() -> None:
    async with after_the_first() as (store, producer):
        before = store.puts
        for _ in range(1000):
            producer.send("t", "x")
            await asyncio.sleep(0.0001)
        await producer.flush()
        assert store.puts - before <= 0.1 / 0.005 + 3, "more than one batch in 5 ms"


@virtual
async def test_an_answer_names_the_time_of_puts_and_not_its_own() -> None:
    async with cluster_of("a:1", store=SlowStore()) as cluster:
        await cluster.create("t", 1)
        first, *others = [
            asyncio.create_task(cluster.line("a:1").produce_once(frame_of("t", 0, b"%d" % number)))
            for number in range(5)
        ]
        assert (await first).put_ms == pytest.approx(1000 * PUT_S, abs=1)
        for answer in await asyncio.gather(*others):  # they have waited for the put of the first
            assert answer.put_ms == pytest.approx(1000 * PUT_S, abs=1)

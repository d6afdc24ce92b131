"""Transactional handlers on brokers in virtual time, and once over gRPC: what they return is sent and
their messages are acknowledged all or nothing, whatever fails.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import ledgermq
import ledgermq.sync
from ledgermq import Outgoing, errors
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.transaction_calls import constants_of
from tests.e2e.group_clients import committed, fill
from tests.e2e.test_client_takeover import client_of
from tests.e2e.test_transactions import brokers, read
from tests.waiting import until


class Inline(Executor):
    """Runs functions at once: virtual time does not wait for threads."""

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*given, **named))
        except Exception as error:
            future.set_exception(error)
        return future


@asynccontextmanager
async def running(client: ledgermq.Client, *handlers: ledgermq.Handler) -> AsyncIterator[asyncio.Task[None]]:
    """Handlers that run until the end of the block, where they finish."""
    stop = asyncio.Event()
    task = asyncio.create_task(client.run_handlers(*handlers, stop=stop))
    try:
        yield task
        stop.set()
        await asyncio.wait_for(task, 60)
    finally:
        task.cancel()


async def values(cluster: Cluster, topic: str, partitions: int) -> list[bytes]:
    return [value for number in range(partitions) for value in await cluster.read_all(topic, number)]


async def until_copied(cluster: Cluster, topic: str, partitions: int, count: int, timeout_s: float = 60) -> None:
    async def is_there() -> bool:
        return len(await values(cluster, topic, partitions)) >= count

    await until(is_there, timeout_s, every_s=0.05)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("shape", ["one", "list", "generator", "asynchronous generator", "synchronous"])
def test_what_a_handler_returns_is_sent_with_the_acknowledgement(shape: str, concurrency: int) -> None:
    def twice(message: ledgermq.GroupMessage) -> list[Outgoing]:
        return [Outgoing("out", message.value, key=message.key, partition=n) for n in (0, 1)]

    async def one(message: ledgermq.GroupMessage) -> object:
        return twice(message)[0]

    async def several(message: ledgermq.GroupMessage) -> object:
        return twice(message)

    def generator(message: ledgermq.GroupMessage) -> Iterator[Outgoing]:
        yield from twice(message)

    async def asynchronous(message: ledgermq.GroupMessage) -> AsyncIterator[Outgoing]:
        for record in twice(message):
            yield record

    functions: dict[str, Callable[..., object]] = {
        "one": one,
        "list": several,
        "generator": generator,
        "asynchronous generator": asynchronous,
        "synchronous": twice,
    }

    @in_cluster("a:1", "b:1")
    async def scenario(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("in", 2)
            await client.create_topic("out", 2)
            given = await fill(client, "in", 30)
            handler = client.handler(
                "in", group="g", transactional=True, instance_id="a", concurrency=concurrency, executor=Inline()
            )(functions[shape])
            times = 1 if shape == "one" else 2
            async with running(client):
                await until_copied(cluster, "out", 2, 30 * times)
            assert Counter(await values(cluster, "out", 2)) == dict.fromkeys(given, times)
            assert await committed(cluster, "g", "in") == {0: 15, 1: 15}
            assert (handler.handled, handler.failures) == (30, 0)

    scenario()  # type: ignore[unused-coroutine]


@in_cluster("a:1", "b:1")
async def test_a_message_that_fails_takes_nothing_with_it(cluster: Cluster) -> None:
    """It is tried again with pauses; what came before it is committed, other partitions go on."""
    attempts: list[tuple[int, float]] = []

    def on_failure(message: ledgermq.GroupMessage, error: Exception, attempt: int) -> None:
        attempts.append((attempt, asyncio.get_running_loop().time()))

    async with client_of(cluster) as client:
        await client.create_topic("in", 2)
        await client.create_topic("out", 1)
        given = await fill(client, "in", 40)

        @client.handler(
            "in", group="g", transactional=True, instance_id="a", on_failure=on_failure, retry_ms_first=1000
        )
        async def copy(message: ledgermq.GroupMessage) -> Outgoing:
            if (message.partition, message.offset) == (0, 7) and len(attempts) < 4:
                raise ZeroDivisionError
            return Outgoing("out", message.value)

        async with running(client):
            await until(lambda: len(attempts) == 3, 60)
            assert await committed(cluster, "g", "in") == {0: 7, 1: 20}
            await until_copied(cluster, "out", 1, 40)
        assert Counter(await values(cluster, "out", 1)) == dict.fromkeys(given, 1)
        assert [attempt for attempt, _ in attempts] == [1, 2, 3, 4]
        pauses = [later - sooner for (_, sooner), (_, later) in pairwise(attempts)]
        assert all(0.5 * 2**n <= pause <= 1.5 * 2**n + 0.5 for n, pause in enumerate(pauses)), pauses
        assert (copy.handled, copy.failures) == (40, 4)
        assert await committed(cluster, "g", "in") == {0: 20, 1: 20}


@in_cluster("a:1")
async def test_what_on_failure_returns_is_sent_instead(cluster: Cluster) -> None:
    """A dead letter, in the transaction that acknowledges the message; also for results that the
    cluster refuses.
    """

    async def to_dead(message: ledgermq.GroupMessage, error: Exception, attempt: int) -> Outgoing | None:
        return Outgoing("dead", message.value) if attempt == 2 else None

    async with client_of(cluster) as client:
        await client.create_topic("in", 1)
        await client.create_topic("out", 1, {"max.message.bytes": 2000})
        await client.create_topic("dead", 1)
        await fill(client, "in", 30)

        @client.handler("in", group="g", transactional=True, on_failure=to_dead, retry_ms_first=10, executor=Inline())
        def copy(message: ledgermq.GroupMessage) -> object:
            if message.offset == 3:
                raise ZeroDivisionError
            if message.offset == 5:
                return "no record"
            return [Outgoing("out", b"x" * 4000 if message.offset == 9 else message.value)]

        async with running(client):
            await until_copied(cluster, "out", 1, 27)
            await until_copied(cluster, "dead", 1, 3)
        assert await values(cluster, "dead", 1) == [b"3", b"5", b"9"]
        assert sorted(await values(cluster, "out", 1), key=int) == [b"%d" % n for n in range(30) if n not in (3, 5, 9)]
        assert await committed(cluster, "g", "in") == {0: 30}
        assert copy.failures == 6


@in_cluster("a:1", "b:1")
async def test_a_message_that_on_failure_acknowledges_is_finished(cluster: Cluster) -> None:
    """Nothing is sent for it; also if the cluster refuses its result."""

    async def leave_out(message: ledgermq.GroupMessage, error: Exception, attempt: int) -> None:
        if attempt == 2:
            message.ack()

    async with client_of(cluster) as client:
        await client.create_topic("in", 1)
        await client.create_topic("out", 1, {"max.message.bytes": 2000})
        await fill(client, "in", 12)

        @client.handler("in", group="g", transactional=True, on_failure=leave_out, retry_ms_first=10, executor=Inline())
        def copy(message: ledgermq.GroupMessage) -> object:
            if message.offset == 3:
                raise ZeroDivisionError
            return [Outgoing("out", b"x" * 4000 if message.offset == 9 else message.value)]

        async with running(client):
            await until_copied(cluster, "out", 1, 10)
        assert sorted(await values(cluster, "out", 1), key=int) == [b"%d" % n for n in range(12) if n not in (3, 9)]
        assert await committed(cluster, "g", "in") == {0: 12}
        assert copy.failures == 4


@in_cluster("a:1", "b:1")
async def test_messages_share_transactions_up_to_the_bounds(cluster: Cluster) -> None:
    sizes: dict[str, list[int]] = defaultdict(list)
    async with client_of(cluster) as client:
        await client.create_topic("in", 1)
        await client.create_topic("out", 1)
        await fill(client, "in", 120)
        for group, settings in (
            ("many", {"transaction_messages_max": 50}),
            ("each", {"transaction_messages_max": 1}),
            ("slow", {"transaction_ms_max": 100, "transaction_messages_max": 1000}),
        ):

            async def copy(message: ledgermq.GroupMessage, group: str = group) -> Outgoing:
                if group == "slow":
                    await asyncio.sleep(0.01)
                return Outgoing("out", group.encode())

            handler = client.handler("in", group=group, transactional=True, **settings)(copy)
            before = 0
            async with running(client, handler):
                while handler.handled < 120:
                    await asyncio.sleep(0.001)
                    if handler.handled > before:
                        sizes[group].append(handler.handled - before)
                        before = handler.handled
        await until_copied(cluster, "out", 1, 360)  # committed, and visible soon after
        assert Counter(await values(cluster, "out", 1)) == {b"many": 120, b"each": 120, b"slow": 120}
    assert set(sizes["each"]) == {1}
    assert max(sizes["many"]) == 50
    assert len(sizes["many"]) <= 6
    assert 5 <= max(sizes["slow"]) <= 11


@in_cluster("a:1")
async def test_the_cluster_knows_the_time_out_of_a_handler(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("in", 1)
        await fill(client, "in", 1)

        @client.handler("in", group="g", transactional=True, transactional_id="copy", transaction_timeout_s=7)
        async def copy(message: ledgermq.GroupMessage) -> None:
            return None

        async with running(client):
            await until(lambda: copy.handled == 1, 60)
        assert (await client.transactions.describe("copy")).timeout_ms == 7000


@in_cluster("a:1", "b:1", "c:1")
async def test_each_message_has_one_result_though_brokers_are_killed(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("in", 4)
        await client.create_topic("out", 4)
        given = await fill(client, "in", 400)

        @client.handler("in", group="g", transactional=True, instance_id="a", transaction_messages_max=10)
        async def copy(message: ledgermq.GroupMessage) -> Outgoing:
            await asyncio.sleep(0.01)
            return Outgoing("out", message.value, partition=message.partition)

        async with running(client):
            await until(lambda: copy.handled > 50, 60)
            await cluster.stop("b:1", graceful=False)
            await until(lambda: copy.handled > 150, 120)
            await cluster.stop("c:1", graceful=False)
            await until_copied(cluster, "out", 4, 400, 240)
        found = await values(cluster, "out", 4)
        assert Counter(found) == dict.fromkeys(given, 1)


@in_cluster("a:1", "b:1")
async def test_handlers_that_join_and_leave_copy_each_message_once(cluster: Cluster) -> None:
    async def copy(message: ledgermq.GroupMessage) -> Outgoing:
        await asyncio.sleep(0.01)
        return Outgoing("out", message.value)

    async with client_of(cluster) as client, client_of(cluster) as other:
        await client.create_topic("in", 4)
        await client.create_topic("out", 2)
        given = await fill(client, "in", 800)
        handlers = [
            each.handler("in", group="g", transactional=True, concurrency=2, ordered_by="key")(copy)
            for each in (client, other)
        ]
        async with running(client):
            await until(lambda: handlers[0].handled > 100, 60)
            async with running(other):
                await until(lambda: handlers[1].handled > 100, 60)
            await until_copied(cluster, "out", 2, 800)
        assert Counter(await values(cluster, "out", 2)) == dict.fromkeys(given, 1)


@in_cluster("a:1")
async def test_a_second_process_with_the_same_id_stops_the_first(cluster: Cluster) -> None:
    async def copy(message: ledgermq.GroupMessage) -> Outgoing:
        return Outgoing("out", message.value)

    async with client_of(cluster) as client, client_of(cluster) as other:
        await client.create_topic("in", 2)
        await client.create_topic("out", 1)
        for each in (client, other):
            each.handler("in", group="g", transactional=True, transactional_id="copy")(copy)
        first = asyncio.create_task(client.run_handlers())
        given = await fill(client, "in", 10)
        await until_copied(cluster, "out", 1, 10)
        async with running(other):
            await asyncio.sleep(5)
            given += await fill(client, "in", 20, name="n")
            with pytest.raises(errors.TransactionFenced):
                await asyncio.wait_for(first, 60)
            await until_copied(cluster, "out", 1, 30)
        assert Counter(await values(cluster, "out", 1)) == dict.fromkeys(given, 1)


@in_cluster("a:1", constants=constants_of(expiry_ms=5_000, expiry_look_ms=1_000))
async def test_an_id_that_the_cluster_has_forgotten_begins_anew(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("in", 1)
        await client.create_topic("out", 1)

        @client.handler("in", group="g", transactional=True, transactional_id="copy", retry_ms_first=10)
        async def copy(message: ledgermq.GroupMessage) -> Outgoing:
            return Outgoing("out", message.value)

        async with running(client):
            await fill(client, "in", 5, name="a")
            await until_copied(cluster, "out", 1, 5)
            await asyncio.sleep(30)
            with pytest.raises(errors.TransactionUnknown):
                await client.transactions.outcome("copy", epoch=1, number=1)
            await fill(client, "in", 5, name="b")
            await until_copied(cluster, "out", 1, 10)
        assert sorted(await values(cluster, "out", 1)) == [
            b"%s%d" % (name, n) for name in (b"a", b"b") for n in range(5)
        ]


def test_settings_that_do_not_fit_are_refused() -> None:
    @in_cluster("a:1")
    async def scenario(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            for settings in (
                {"transactional": True, "commit": "acked"},
                {"transactional": True, "broadcast": True},
                {"transactional": "yes"},
                {"transactional_id": "x"},
                {"transactional": True, "transaction_messages_max": 0},
                {"transactional": True, "transaction_timeout_s": 0},
            ):
                with pytest.raises(errors.InvalidConfig):
                    client.handler("in", group="g", **settings)

    scenario()  # type: ignore[unused-coroutine]


async def test_over_grpc_and_for_the_synchronous_client(tmp_path: Path) -> None:
    async with brokers(tmp_path) as address, ledgermq.connect(address) as client:
        await client.create_topic("in", 2)
        await client.create_topic("out", 2)
        given = await fill(client, "in", 100)

        def program() -> None:
            with ledgermq.sync.connect(address) as synchronous:

                def copy(message: ledgermq.GroupMessage) -> list[Outgoing]:
                    return [Outgoing("out", message.value, partition=message.partition)]

                settings = {"transactional": True, "instance_id": "a"}
                listener = synchronous.listen("in", copy, group="g", **settings)
                until_s = time.monotonic() + 60
                while listener.handler.handled < 100 and time.monotonic() < until_s:
                    time.sleep(0.02)
                listener.close()

        await asyncio.to_thread(program)
        await until(lambda: _all_there(client, 100), every_s=0.05)
        assert Counter(await read(client, "out")) == dict.fromkeys(given, 1)


async def _all_there(client: ledgermq.Client, count: int) -> bool:
    return sum((await client.list_offsets("out")).values()) >= count

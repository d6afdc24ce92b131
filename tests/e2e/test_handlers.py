"""Handlers on brokers in virtual time: order, concurrency, automatic retries of failures, and an
end that finishes running calls.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from itertools import pairwise
from random import Random

import pytest

import ledgermq
from ledgermq import errors
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import committed, fill
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until


def now_s() -> float:
    return asyncio.get_running_loop().time()


@in_cluster("a:1")
async def test_a_failed_message_comes_again_and_its_partition_waits_while_others_go_on(cluster: Cluster) -> None:
    seen: list[tuple[int, int]] = []
    attempts: list[tuple[int, float]] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 20)

        def on_failure(message: ledgermq.GroupMessage, error: Exception, attempt: int) -> None:
            attempts.append((attempt, now_s()))

        @client.handler("t", group="g", concurrency=4, on_failure=on_failure, retry_ms_first=1000)
        async def handle(message: ledgermq.GroupMessage) -> None:
            if (message.partition, message.offset) == (0, 3) and len(attempts) < 4:
                raise ZeroDivisionError
            seen.append((message.partition, message.offset))

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.run_handlers(stop=stop))
            await until(lambda: len(attempts) == 2)
            assert {at for at in seen if at[0] == 1} == {(1, offset) for offset in range(10)}
            assert {at for at in seen if at[0] == 0} == {(0, offset) for offset in range(3)}
            await until(lambda: len(seen) == 20)
            stop.set()
        for partition in (0, 1):
            assert [offset for at, offset in seen if at == partition] == list(range(10))
        assert [attempt for attempt, _ in attempts] == [1, 2, 3, 4]
        waits = [after - before for (_, before), (_, after) in pairwise(attempts)]
        assert all(0.5 * 2**number <= wait <= 1.1 * 2**number for number, wait in enumerate(waits))
        assert (handle.handled, handle.failures) == (20, 4)
        assert await committed(cluster, "g", "t") == {0: 10, 1: 10}


@pytest.mark.parametrize("ordered_by", ["partition", "key", None])
def test_order_and_concurrency(ordered_by: str | None) -> None:
    @in_cluster("a:1")
    async def scenario(cluster: Cluster) -> None:
        running: Counter[object] = Counter()
        order: dict[object, list[int]] = defaultdict(list)
        most = 0
        async with client_of(cluster) as client:
            await client.create_topic("t", 3)
            async with client.producer() as producer:
                for number in range(120):
                    producer.send("t", b"%d" % number, key=b"%d" % (number % 10), partition=number % 3)

            @client.handler("t", group="g", concurrency=6, ordered_by=ordered_by)
            async def handle(message: ledgermq.GroupMessage) -> None:
                nonlocal most
                keys = {
                    "partition": message.partition,
                    "key": (message.partition, message.key),
                    None: (message.partition, message.offset),
                }
                name = keys[ordered_by]
                running[name] += 1
                assert running[name] == 1
                most = max(most, running.total())
                await asyncio.sleep(0.01 * (message.offset % 7))
                order[name].append(message.offset)
                running[name] -= 1

            stop = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(client.run_handlers(stop=stop))
                await until(lambda: handle.handled == 120)
                stop.set()
            assert all(offsets == sorted(offsets) for offsets in order.values())
            assert most == (3 if ordered_by == "partition" else 6)
            assert handle.failures == 0
            assert await committed(cluster, "g", "t") == {0: 40, 1: 40, 2: 40}

    scenario()  # type: ignore[unused-coroutine]


@in_cluster("a:1", "b:1")
async def test_handlers_join_and_leave_and_each_message_is_handled_once(cluster: Cluster) -> None:
    seen: Counter[bytes] = Counter()

    async def handle(message: ledgermq.GroupMessage) -> None:
        await asyncio.sleep(0.02)
        seen[message.value or b""] += 1

    async with client_of(cluster) as client, client_of(cluster) as other:
        await client.create_topic("t", 6)
        await fill(client, "t", 1200)
        for each in (client, other):
            each.handler("t", group="g", concurrency=3, ordered_by="key")(handle)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.run_handlers())
            await until(lambda: len(seen) > 100)
            tasks.create_task(other.run_handlers(stop=stop))
            await until(lambda: len(seen) > 600)
            stop.set()
            await until(lambda: len(seen) == 1200)
            for task in list(tasks._tasks):
                task.cancel()
        assert set(seen.values()) == {1}


@in_cluster("a:1")
async def test_a_partition_whose_handler_hangs_keeps_no_other_back(cluster: Cluster) -> None:
    hung = asyncio.Event()
    seen: Counter[int] = Counter()
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        async with client.producer(batch_bytes_max=2000) as producer:
            for number in range(800):
                producer.send("t", b"x" * 1000, partition=number % 2)

        @client.handler(
            "t", group="g", concurrency=2, waiting_max=10, prefetch_bytes_max=100_000, fetch_bytes_max=20_000
        )
        async def handle(message: ledgermq.GroupMessage) -> None:
            if message.partition == 0:
                await hung.wait()
            seen[message.partition] += 1

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.run_handlers(stop=stop))
            await until(lambda: seen[1] == 400)
            assert seen[0] == 0
            hung.set()
            await until(lambda: seen[0] == 400)
            stop.set()


@in_cluster("a:1")
async def test_a_call_that_takes_too_long_has_failed(cluster: Cluster) -> None:
    calls: list[float] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 1)

        @client.handler("t", group="g", timeout_s=3)
        async def handle(message: ledgermq.GroupMessage) -> None:
            calls.append(now_s())
            if len(calls) == 1:
                await asyncio.Event().wait()

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.run_handlers(handle, stop=stop))
            await until(lambda: handle.handled == 1)
            stop.set()
        assert isinstance(handle.last_error, TimeoutError)
        assert calls[1] - calls[0] > 3


@in_cluster("a:1")
async def test_an_end_that_takes_too_long_is_told(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 3)
        stop = asyncio.Event()

        @client.handler("t", group="g")
        async def handle(message: ledgermq.GroupMessage) -> None:
            if message.offset == 1:
                stop.set()
                await asyncio.Event().wait()

        with pytest.raises(errors.DeadlineExceeded, match="1 messages"):
            await client.run_handlers(stop=stop, drain_timeout_s=5)
        assert await committed(cluster, "g", "t") == {0: 1}


@in_cluster("a:1")
async def test_an_error_that_time_does_not_cure_ends_the_handlers(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        with pytest.raises(errors.InvalidConfig, match="no handler"):
            await client.run_handlers()

        @client.handler("missing", group="g")
        async def handle(message: ledgermq.GroupMessage) -> None:
            raise AssertionError("never called")

        with pytest.raises(errors.UnknownTopic):
            await client.run_handlers()
        with pytest.raises(errors.InvalidConfig, match="acked"):
            client.handler("t", group="g", commit="manual")
        with pytest.raises(errors.InvalidConfig, match="concurrency"):
            client.handler("t", group="g", concurrency=0)


@in_cluster("a:1")
async def test_at_most_once_does_not_try_again(cluster: Cluster) -> None:
    calls: list[int] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 5)
        stop = asyncio.Event()

        @client.handler("t", group="g", commit="before")
        async def handle(message: ledgermq.GroupMessage) -> None:
            calls.append(message.offset)
            if message.offset == 4:
                stop.set()
            raise ZeroDivisionError

        await client.run_handlers(stop=stop)
        assert calls == [0, 1, 2, 3, 4]
        assert handle.failures == 5


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ordered_by", ["partition", "key"])
def test_order_holds_while_handlers_fail_stop_and_are_cancelled(ordered_by: str, seed: int) -> None:
    """When a handler gets a message, all before it in its lane have succeeded."""

    @in_cluster("a:1", "b:1")
    async def scenario(cluster: Cluster) -> None:
        random = Random(seed)
        lanes: dict[object, list[int]] = defaultdict(list)
        done: set[tuple[int, int]] = set()

        def lane_of(message: ledgermq.Message) -> object:
            return message.partition if ordered_by == "partition" else (message.partition, message.key)

        async def handle(message: ledgermq.GroupMessage) -> None:
            before = [offset for offset in lanes[lane_of(message)] if offset < message.offset]
            assert all((message.partition, offset) in done for offset in before), "in order"
            await asyncio.sleep(random.choice((0, 0.01, 0.2)))
            if random.random() < 0.05:
                raise ZeroDivisionError
            done.add((message.partition, message.offset))

        def on_failure(message: ledgermq.GroupMessage, error: Exception, attempt: int) -> None:
            if not isinstance(error, ZeroDivisionError):
                wrong.append(error)

        async def member() -> None:
            while len(done) < 400:
                async with client_of(cluster) as client:
                    settings = {"revoke_wait_s": random.choice((0, 5)), "commit_interval_ms": random.choice((50, 5000))}
                    client.handler(
                        "t", group="g", concurrency=5, ordered_by=ordered_by, on_failure=on_failure, **settings
                    )(handle)
                    stop = asyncio.Event()
                    running = asyncio.create_task(client.run_handlers(stop=stop))
                    await asyncio.wait([running], timeout=random.uniform(0.5, 6))
                    stop.set() if random.random() < 0.5 else running.cancel()
                    await asyncio.wait([running])
                    assert running.cancelled() or running.exception() is None

        wrong: list[Exception] = []
        async with client_of(cluster) as client:
            await client.create_topic("t", 4)
            async with client.producer() as producer:
                for number in range(400):
                    key = b"%d" % random.randrange(6)
                    offset = (await producer.send("t", b"", key=key, partition=number % 4)).offset
                    lanes[number % 4 if ordered_by == "partition" else (number % 4, key)].append(offset)
            async with asyncio.timeout(600):
                await asyncio.gather(*(member() for _ in range(3)))
        assert not wrong

    scenario()  # type: ignore[unused-coroutine]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_message_that_on_failure_acknowledges_is_finished(is_async: bool) -> None:
    @in_cluster("a:1")
    async def scenario(cluster: Cluster) -> None:
        calls: Counter[int] = Counter()
        async with client_of(cluster) as client:
            await client.create_topic("t", 1)
            await fill(client, "t", 5)

            def give_up(message: ledgermq.GroupMessage, error: Exception, attempt: int) -> None:
                assert isinstance(error, ZeroDivisionError)
                if attempt == 3:
                    assert message.ack()

            async def give_up_later(message: ledgermq.GroupMessage, error: Exception, attempt: int) -> None:
                await asyncio.sleep(1)
                give_up(message, error, attempt)

            @client.handler("t", group="g", on_failure=give_up_later if is_async else give_up, retry_ms_first=10)
            async def handle(message: ledgermq.GroupMessage) -> None:
                calls[message.offset] += 1
                if message.offset == 2:
                    raise ZeroDivisionError

            stop = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(client.run_handlers(stop=stop))
                await until(lambda: calls[4] == 1)
                await asyncio.sleep(60)
                stop.set()
            assert calls == {0: 1, 1: 1, 2: 3, 3: 1, 4: 1}
            assert (handle.handled, handle.failures) == (4, 3)
            assert await committed(cluster, "g", "t") == {0: 5}

    scenario()  # type: ignore[unused-coroutine]

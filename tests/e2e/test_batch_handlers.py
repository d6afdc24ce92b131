"""Handlers of batches, with middleware and with a rate: on brokers in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

import ledgermq
from ledgermq import Retry, errors
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import committed, fill
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until

Next = Callable[[object], Awaitable[object]]


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def run_until(client: ledgermq.Client, done: Callable[[], object]) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(client.run_handlers(stop=stop))
        await until(done)
        stop.set()


@in_cluster("a:1")
async def test_batches_are_messages_of_one_partition_in_their_order(cluster: Cluster) -> None:
    batches: list[list[tuple[int, int]]] = []
    running = 0
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 50)

        @client.handler("t", group="g", batch=True, batch_records_max=10, concurrency=2)
        async def store(messages: list[ledgermq.GroupMessage]) -> None:
            nonlocal running
            running += 1
            assert running <= 2
            await asyncio.sleep(0.01)
            batches.append([(message.partition, message.offset) for message in messages])
            running -= 1

        await run_until(client, lambda: store.handled == 50)
        assert all(len({partition for partition, _ in batch}) == 1 for batch in batches)
        assert max(map(len, batches)) == 10
        for partition in (0, 1):
            assert [o for batch in batches for p, o in batch if p == partition] == list(range(25))
        assert await committed(cluster, "g", "t") == {0: 25, 1: 25}


@in_cluster("a:1")
async def test_a_batch_waits_for_more_but_not_longer_than_set(cluster: Cluster) -> None:
    seen: list[tuple[float, int]] = []
    async with client_of(cluster) as client, client.producer() as producer:
        await client.create_topic("t", 1)

        @client.handler("t", group="g", batch=True, batch_records_max=5, batch_wait_ms=10_000)
        async def store(messages: list[ledgermq.GroupMessage]) -> None:
            seen.append((now_s(), len(messages)))

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.run_handlers(stop=stop))
            await producer.send("t", b"a")
            first_s = now_s()
            await until(lambda: len(seen) == 1)
            assert seen[0][1] == 1
            assert 9 < seen[0][0] - first_s < 13
            await (await producer.send_many("t", [b"b"] * 5))
            full_s = now_s()
            await until(lambda: len(seen) == 2)
            assert seen[1][1] == 5
            assert seen[1][0] - full_s < 5, "a full batch does not wait"
            await producer.send("t", b"c")
            await asyncio.sleep(3)
            stop.set()  # a batch that still waits is not begun
        assert len(seen) == 2
        assert await committed(cluster, "g", "t") == {0: 6}


@in_cluster("a:1")
async def test_each_message_of_a_failed_batch_is_handled_alone(cluster: Cluster) -> None:
    calls: list[list[int]] = []
    attempts: list[tuple[int, int]] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 20)

        @client.handler(
            "t",
            group="g",
            batch=True,
            batch_records_max=10,
            retry=Retry.in_order(max_attempts=3, then="drop"),
            on_failure=lambda message, error, attempt: attempts.append((message.offset, attempt)),
        )
        async def store(messages: list[ledgermq.GroupMessage]) -> None:
            calls.append([message.offset for message in messages])
            if 4 in calls[-1]:
                raise ZeroDivisionError

        await run_until(client, lambda: store.handled == 19)
        assert calls[0] == list(range(10))
        assert calls[1:13] == [[0], [1], [2], [3], [4], [4], [4], [5], [6], [7], [8], [9]]
        assert calls[13:] == [list(range(10, 20))]
        assert attempts == [(4, 1), (4, 2), (4, 3)]
        assert (store.failures, store.exhausted) == (4, 1)
        assert await committed(cluster, "g", "t") == {0: 20}


@in_cluster("a:1")
async def test_failed_messages_of_batches_go_through_levels_to_the_dead_letters(cluster: Cluster) -> None:
    done: Counter[bytes] = Counter()
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 30)

        @client.handler("t", group="g", batch=True, ordered_by=None, retry=Retry.levels(3, ("1s", "2s")))
        async def store(messages: list[ledgermq.GroupMessage]) -> None:
            if any(message.value.endswith(b"7") for message in messages):
                raise ZeroDivisionError
            done.update(message.value for message in messages)

        await run_until(client, lambda: store.dead_lettered == 3)
        assert store.handled == 27
        assert set(done.values()) == {1}


@in_cluster("a:1")
async def test_what_the_program_acknowledges_in_a_failed_batch_is_not_handled_again(cluster: Cluster) -> None:
    calls: list[list[int]] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 4)

        @client.handler("t", group="g", batch=True, batch_records_max=4, batch_wait_ms=5_000)
        async def store(messages: list[ledgermq.GroupMessage]) -> None:
            calls.append([message.offset for message in messages])
            if len(messages) > 1:
                messages[0].ack()
                messages[1].ack()
                raise ZeroDivisionError

        await run_until(client, lambda: store.handled == 2)
        assert calls == [[0, 1, 2, 3], [2], [3]]
        assert await committed(cluster, "g", "t") == {0: 4}


@in_cluster("a:1")
async def test_a_queue_s_handler_takes_batches_too(cluster: Cluster) -> None:
    calls: list[int] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 40)

        @client.queue_handler("t", group="q", batch=True, batch_records_max=8, concurrency=2, wait_ms_first=100)
        async def work(messages: list[ledgermq.QueueMessage]) -> None:
            calls.append(len(messages))
            if any(message.offset == 3 and message.attempt == 1 for message in messages):
                raise ZeroDivisionError

        await run_until(client, lambda: work.handled == 40)
        assert 1 < max(calls) <= 8
        assert work.failures >= 2, "a batch and the message alone, at least"


@pytest.mark.parametrize("kind", ["handler", "queue", "transactional"])
@in_cluster("a:1")
async def test_a_rate_spreads_the_calls(cluster: Cluster, kind: str) -> None:
    begun: list[float] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 30)

        async def call(message: ledgermq.Message) -> None:
            begun.append(now_s())

        if kind == "queue":
            client.queue_handler("t", group="g", rate_per_s=2, concurrency=4)(call)
        else:
            client.handler("t", group="g", rate_per_s=2, concurrency=4, transactional=kind == "transactional")(call)
        await run_until(client, lambda: len(begun) >= 20)
        took_s = begun[19] - begun[0]
        assert 9 < took_s < 20
        assert all(b - a > 0.4 for a, b in zip(begun, begun[2:], strict=False))


@pytest.mark.parametrize("kind", ["handler", "batch", "queue", "transactional"])
@in_cluster("a:1")
async def test_middleware_sees_each_call_and_its_outcome(cluster: Cluster, kind: str) -> None:
    seen: list[str] = []
    failed: set[int] = set()

    async def outer(given: object, call_next: Next) -> object:
        seen.append("before")
        try:
            result = await call_next(given)
        except ZeroDivisionError:
            seen.append("failed")
            raise
        seen.append("after")
        return result

    async def inner(given: object, call_next: Next) -> object:
        assert seen[-1] == "before"
        return await call_next(given)

    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await client.create_topic("copies", 1)
        await fill(client, "t", 3)

        async def call(given: object) -> object:
            [message] = given if isinstance(given, list) else [given]
            if message.offset == 1 and message.offset not in failed:
                failed.add(message.offset)
                raise ZeroDivisionError
            return ledgermq.Outgoing("copies", message.value) if kind == "transactional" else None

        around = [outer, inner]
        if kind == "queue":
            client.queue_handler("t", group="g", middleware=around, wait_ms_first=10)(call)
        elif kind == "batch":
            client.handler("t", group="g", middleware=around, batch=True, batch_records_max=1)(call)  # type: ignore[arg-type]
        else:
            client.handler("t", group="g", middleware=around, transactional=kind == "transactional")(call)
        await run_until(client, lambda: seen.count("after") >= 3 and seen.count("failed") == 1)
        assert seen.count("before") == seen.count("after") + 1


@in_cluster("a:1")
async def test_middleware_may_decide_the_outcome(cluster: Cluster) -> None:
    async def forgive(given: object, call_next: Next) -> object:
        try:
            return await call_next(given)
        except ZeroDivisionError:
            return None

    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 3)

        @client.handler("t", group="g", middleware=[forgive])
        async def fails(message: ledgermq.GroupMessage) -> None:
            raise ZeroDivisionError

        await run_until(client, lambda: fails.handled == 3)
        assert fails.failures == 0


@in_cluster("a:1")
async def test_settings_that_do_not_go_together_are_refused(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        for wrong in (
            {"batch": True, "ordered_by": "key"},
            {"batch": True, "transactional": True},
            {"batch": True, "ordered_by": None, "retry": Retry.metaq(store="store")},
            {"batch": True, "batch_records_max": 0},
            {"batch": True, "batch_wait_ms": -1},
            {"rate_per_s": 0},
            {"middleware": ["no function"]},
        ):
            with pytest.raises(errors.InvalidConfig):
                client.handler("t", group="g", **wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidConfig):
            client.queue_handler("t", group="g", batch_records_max=0)

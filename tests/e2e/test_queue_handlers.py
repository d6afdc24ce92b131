"""Handlers of queues, and the end of members, in a cluster of brokers in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import Executor, Future

import pytest

import ledgermq
from ledgermq import errors
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.queued import fill
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until


@in_cluster("a:1")
async def test_handlers(cluster: Cluster) -> None:
    calls: Counter[bytes] = Counter()
    running = most = 0
    async with client_of(cluster) as client:
        await fill(client, 40)

        @client.queue_handler("jobs", group="workers", concurrency=8, lease_s=2.0, attempts_max=3, wait_ms_first=10)
        async def work(message: ledgermq.QueueMessage) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            calls[message.value or b""] += 1
            try:
                await asyncio.sleep(5 if message.value == b"7" else 0.1)
                if message.value == b"3":
                    raise ValueError("no")
            finally:
                running -= 1

        stop = asyncio.Event()
        task = asyncio.create_task(client.run_handlers(stop=stop))
        await until(lambda: work.handled == 39 and work.dead_lettered == 1, 60)
        stop.set()
        await task
        assert calls.pop(b"3") == 3
        assert set(calls.values()) == {1}, "the lease of a long call was renewed"
        assert most == 8
        assert work.failures == 3
        assert isinstance(work.last_error, ValueError)


@in_cluster("a:1")
async def test_settings_of_handlers(cluster: Cluster) -> None:
    failures: list[tuple[bytes | None, str, int]] = []
    in_executor: list[bytes | None] = []

    class Inline(Executor):
        def submit(self, function, /, *given, **named):  # type: ignore[no-untyped-def]
            done = Future()  # type: ignore[var-annotated]
            done.set_result(function(*given, **named))
            return done

    async with client_of(cluster) as client:
        await fill(client, 2)

        @client.queue_handler(
            "jobs",
            group="slow",
            timeout_s=1.0,
            wait_ms_first=40_000,
            wait_ms_max=10,
            attempts_max=2,
            on_failure=lambda message, error, attempt: failures.append((message.value, type(error).__name__, attempt)),
        )
        async def slow(message: ledgermq.QueueMessage) -> None:
            if message.value == b"0":
                await asyncio.sleep(100)

        @client.queue_handler("jobs", group="plain", executor=Inline())
        def plain(message: ledgermq.QueueMessage) -> None:
            in_executor.append(message.value)

        stop = asyncio.Event()
        task = asyncio.create_task(client.run_handlers(stop=stop))
        await until(lambda: slow.dead_lettered == 1 and plain.handled == 2, 20)
        stop.set()
        await task
        assert failures == [(b"0", "TimeoutError", 1), (b"0", "TimeoutError", 2)], "wait_ms_max bounds the wait"
        assert sorted(value or b"" for value in in_executor) == [b"0", b"1"]


# -- drain


@in_cluster("a:1")
async def test_drain_waits_for_what_the_program_has_and_gives_the_rest_to_others(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 20)
        async with client.queue("jobs", group="workers") as queue, client.queue("jobs", group="workers") as other:
            mine = [await anext(aiter(queue))]  # leases more than one ahead
            with pytest.raises(errors.DeadlineExceeded, match="1 messages are not finished after 1 s"):
                await queue.drain(timeout=1)
            draining = asyncio.create_task(queue.drain())
            rest = await other.fetch(50, timeout=5)
            assert len(mine) + len(rest) == 20
            assert not draining.done()
            assert await queue.fetch(timeout=5) == []
            assert [message async for message in queue] == []
            mine[0].ack()
            await draining
            for message in rest:
                message.ack()
            await other.flush()
        described = await client.queues.describe("workers")
        assert (described.backlog, described.leased) == (0, 0)


@in_cluster("a:1")
async def test_drain_does_not_wait_for_leases_that_have_ended(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 1)
        async with client.queue("jobs", group="workers", lease_s=5) as queue:
            assert len(await queue.fetch(timeout=5)) == 1
            begun_s = asyncio.get_running_loop().time()
            await queue.drain(timeout=30)
            assert 4 < asyncio.get_running_loop().time() - begun_s <= 5

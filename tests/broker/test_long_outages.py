"""Every client object that lives long works again after the cluster was away for longer than each of its
time-outs, whether its program went on calling it or not. Meanwhile calls end within the caller's time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

import ledgermq
from ledgermq.errors import DeadlineExceeded, LedgerMQError, Unavailable
from tests.broker.cluster import Cluster, cluster_of
from tests.broker.lasting_objects import OBJECTS, Object, Works, World, consumer, group_consumer, queue, queue_handler
from tests.virtual_time import run_virtual

AWAY_S = 200.0
"""Longer than any time-out: that of a delivery is 120 s."""
BACK_S = 90.0
"""Takes a lease of an exclusive producer, a session of a group, and back-offs into account."""


async def kill(cluster: Cluster) -> None:
    await cluster.stop("a:1", graceful=False)


async def restart(cluster: Cluster) -> None:
    await cluster.start("a:1")


async def pause(cluster: Cluster) -> None:
    cluster.views["a:1"].pause()


async def resume(cluster: Cluster) -> None:
    cluster.views["a:1"].resume()


Step = Callable[[Cluster], Awaitable[None]]


@asynccontextmanager
async def filled_cluster() -> AsyncIterator[Cluster]:
    async with cluster_of("a:1", heartbeat_interval_ms=2000, holding_ms=12_000) as cluster:
        for topic in ("t", "out", "requests"):
            await cluster.create(topic, 1)
        await cluster.create("keyed", 1, cleanup_policy="compact")
        yield cluster


WAYS = [((kill, restart), True), ((kill, restart), False), ((pause, resume), True)]


@pytest.mark.parametrize(("away", "calls_on"), WAYS, ids=["killed-called", "killed-idle", "stopped-called"])
@pytest.mark.parametrize("made", OBJECTS)
def test_it_works_again_after_a_long_outage(made: Object, away: tuple[Step, Step], calls_on: bool) -> None:
    async def scenario() -> None:
        begin, finish = away
        clock_s = asyncio.get_running_loop().time
        async with filled_cluster() as cluster, cluster.client() as client, AsyncExitStack() as stack:
            works = await made(World(cluster, client, stack))
            await produced(cluster, b"before")
            assert await comes_through(works, b"before"), "it does not work at all"
            await begin(cluster)
            until_s = clock_s() + AWAY_S
            while calls_on and clock_s() < until_s:
                begun_s = clock_s()
                with suppress(LedgerMQError, TimeoutError):
                    await asyncio.wait_for(works(b"meanwhile"), max(0.1, until_s - begun_s))
                await asyncio.sleep(0.5 if clock_s() < begun_s + 0.5 else 0)
            await asyncio.sleep(max(0.0, until_s - clock_s()))
            await finish(cluster)
            await cluster.settled()
            await produced(cluster, b"after")
            assert await comes_through(works, b"after"), f"it does not work {BACK_S:g} s after the outage"

    run_virtual(scenario)


async def produced(cluster: Cluster, value: bytes) -> None:
    await cluster.produce("t", 0, value)
    async with cluster.client() as client, client.producer() as keyed:
        await keyed.send("keyed", value, key=value)


async def comes_through(works: Works, value: bytes) -> bool:
    clock_s = asyncio.get_running_loop().time
    until_s = clock_s() + BACK_S
    while clock_s() < until_s:
        with suppress(LedgerMQError, TimeoutError):
            if await asyncio.wait_for(works(value), until_s - clock_s()):
                return True
        await asyncio.sleep(0.5)
    return False


TIMED: list[Object] = [consumer, group_consumer, queue]


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "new"])
@pytest.mark.parametrize("away", [kill, pause], ids=["killed", "stopped"])
@pytest.mark.parametrize("made", TIMED)
def test_fetch_ends_within_its_time_while_no_broker_answers(made: Object, away: Step, begun: bool) -> None:
    async def scenario() -> None:
        clock_s = asyncio.get_running_loop().time
        async with filled_cluster() as cluster, cluster.client() as client, AsyncExitStack() as stack:
            works = await made(World(cluster, client, stack))
            if begun:
                await produced(cluster, b"before")
                assert await comes_through(works, b"before")
            await away(cluster)
            for _ in range(5):
                begun_s = clock_s()
                with suppress(Unavailable):
                    await works(b"")
                assert clock_s() - begun_s < 1.01
            await (resume if away is pause else restart)(cluster)

    run_virtual(scenario)


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "new"])
def test_a_loop_over_fetches_of_a_queue_does_not_take_dead_brokers_for_an_empty_queue(begun: bool) -> None:
    async def scenario() -> None:
        async with filled_cluster() as cluster, cluster.client() as client, client.queue("t", group="q") as made:
            await cluster.produce("t", 0, b"1")
            if begun:
                for message in await made.fetch(timeout=5):
                    assert await message.ack()
                assert await made.fetch(timeout=1) == [], "empty: a broker has said so"
            await kill(cluster)
            with pytest.raises(Unavailable, match="queue 'q'"):
                await _until_empty(made)
            await restart(cluster)
            await cluster.settled()
            await cluster.produce("t", 0, b"2")
            while not (messages := await _fetched(made)):
                pass
            assert messages[-1].value == b"2"

    run_virtual(scenario)


async def _until_empty(made: ledgermq.Queue) -> None:
    while await made.fetch(timeout=1):
        pass


async def _fetched(made: ledgermq.Queue) -> list[ledgermq.QueueMessage]:
    with suppress(Unavailable):
        return await made.fetch(timeout=1)
    return []


def test_flush_of_a_queue_says_that_an_acknowledgement_was_not_answered() -> None:
    async def scenario() -> None:
        clock_s = asyncio.get_running_loop().time
        async with filled_cluster() as cluster, cluster.client() as client, client.queue("t", group="q") as made:
            await cluster.produce("t", 0, b"1")
            (message,) = await made.fetch(timeout=5)
            await kill(cluster)
            message.ack()
            begun_s = clock_s()
            with pytest.raises(DeadlineExceeded):
                await made.flush(timeout_s=2)
            assert clock_s() - begun_s < 2.01
            with pytest.raises(Unavailable, match="what was said about 1 messages"):
                await made.flush()
            await made.flush()

    run_virtual(scenario)


def test_a_handler_of_a_queue_logs_that_no_messages_come(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with filled_cluster() as cluster, cluster.client() as client, AsyncExitStack() as stack:
            works = await queue_handler(World(cluster, client, stack))
            await kill(cluster)
            await asyncio.sleep(100)
            await restart(cluster)
            await cluster.settled()
            await produced(cluster, b"after")
            assert await comes_through(works, b"after")

    caplog.set_level(logging.INFO, "ledgermq.handlers")
    run_virtual(scenario)
    texts = [record.getMessage() for record in caplog.records if record.name == "ledgermq.handlers"]
    assert 3 <= sum("handler of queue q got no messages" in text for text in texts) <= 5, texts
    assert texts[-1] == "handler of queue q is served again"

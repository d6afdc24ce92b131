"""Timed messages of transactions while owners change, and while what they wait for is loaded again."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.broker import timer_calls as timed
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.timed_transactions import BUNDLES, SMALL, participant_of, timers_of
from tests.broker.timer_calls import bundle_of, listed, now_s, watched
from tests.broker.transaction_calls import beginner, stand_still_after
from tests.waiting import until

# Deaths of owners


@pytest.mark.parametrize("graceful", [True, False])
@pytest.mark.parametrize("step", ["staged", "decided", "copied in part", "copied", "waiting"])
def test_the_next_owner_goes_on_from_each_step(step: str, graceful: bool) -> None:
    @in_cluster("a:1", "b:1", constants=SMALL, **BUNDLES)
    async def run(cluster: Cluster) -> None:
        await cluster.create("t", 1)
        producer = await beginner(cluster, "orders")
        begun_s = now_s()
        dues = {b"%d" % number: begun_s + 30 + number for number in range(8)}
        for value, due_s in dues.items():
            await producer.send_timed("t", 0, (value, due_s))
        await producer.send("t", 0, b"now")
        dying = await cluster.owner_of("t", 0)
        found = await participant_of(cluster)
        if step != "staged":
            chunks = {"decided": 0, "copied in part": 1, "copied": 99, "waiting": 99}[step]
            stands = stand_still_after(found._copier, chunks)
            committing = asyncio.create_task(producer.commit())
            if chunks < 99:
                await asyncio.wait_for(stands.wait(), 20)
            elif step == "waiting":
                await committing
                await producer.completed()
            else:
                await until(lambda: not found.participant.staged_batches, 20, every_s=0.001)
        await cluster.stop(dying, graceful=graceful)
        if step == "staged":
            committing = asyncio.create_task(producer.commit())
        assert await committing == pb.COMMITTED
        await producer.completed(60)
        async with watched(cluster, "t", 0) as watcher:
            assert await watcher.until(9, 120) == [b"now", *dues]
            assert all(at_s >= dues[value] for value, at_s in watcher.seen[1:]), "never early"
            await asyncio.sleep(60)
            assert len(watcher.values) == 9

    run()


@pytest.mark.parametrize("lands", [True, False])
def test_a_completion_in_flight_when_its_owner_dies_happens_once(lands: bool) -> None:
    """The owner dies while the segment of the completion is being put; the put lands, or not."""

    @in_cluster("a:1", "b:1", **BUNDLES)
    async def run(cluster: Cluster) -> None:
        await cluster.create("t", 1)
        producer = await beginner(cluster, "orders")
        await producer.send_timed("t", 0, (b"later", now_s() + 30))
        await producer.send("t", 0, b"now")
        dying = await cluster.owner_of("t", 0)
        found = await participant_of(cluster)
        issued, state_take = asyncio.Event(), found._state.take

        def take(decision, data=(), *others, **more):  # type: ignore[no-untyped-def]
            if data:
                issued.set()
                if not lands:
                    cluster.views[dying].pause()
            return state_take(decision, data, *others, **more)

        found._copier._state.take = take  # type: ignore[method-assign]
        committing = asyncio.create_task(producer.commit())
        await asyncio.wait_for(issued.wait(), 20)
        await asyncio.sleep(0.01)
        await cluster.stop(dying, graceful=False)
        assert await committing == pb.COMMITTED
        await producer.completed(60)
        async with watched(cluster, "t", 0) as watcher:
            assert await watcher.until(2, 120) == [b"now", b"later"]
            await asyncio.sleep(30)
            assert len(watcher.values) == 2

    run()


@in_cluster("a:1", **BUNDLES)
async def test_timed_messages_that_are_loaded_again_hold_a_completion_up_and_lose_nothing(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    producer = await beginner(cluster, "orders")
    due_s = now_s() + 20
    await producer.send_timed("t", 0, (b"first", due_s))
    await producer.commit()
    await producer.completed()
    producer.begin()
    await producer.send_timed("t", 0, (b"second", due_s))
    (await timers_of(cluster)).held.state.broken(AssertionError("a bug"))
    await producer.commit()
    await producer.completed()
    async with watched(cluster, "t", 0) as watcher:
        assert await watcher.until(2) == [b"first", b"second"]


# What is on its way into memory


@in_cluster("a:1", **BUNDLES)
async def test_delivery_waits_for_blocks_that_are_durable_and_not_read_yet(
    cluster: Cluster,
) -> None:
    """The owner cannot read its intake for a while: a later message must not pass an earlier one (W2)."""
    await cluster.create("t", 1)
    due_s = now_s() + 10
    await timed.send(cluster, "t", 0, (b"zero", now_s()))
    held = (await timers_of(cluster)).held
    real, is_open = held.logs.read, asyncio.Event()

    async def read(*asked):  # type: ignore[no-untyped-def]
        if not is_open.is_set():
            raise Unavailable("the store does not answer", retry_after_ms=500)
        return await real(*asked)

    held.logs.read = read  # type: ignore[method-assign]
    producer = await beginner(cluster, "orders")
    await producer.send_timed("t", 0, (b"first", due_s))
    await producer.commit()
    await producer.completed()
    await timed.send(cluster, "t", 0, (b"second", due_s + 1))
    async with watched(cluster, "t", 0) as watcher:
        await asyncio.sleep(30)
        assert watcher.values == [b"zero"]
        assert "does not answer" in (await listed(cluster, await bundle_of(cluster, "t", 0))).summary.trouble
        is_open.set()
        assert await watcher.until(3) == [b"zero", b"first", b"second"]

"""How many timed messages of a topic may wait (`delayed.pending.max`): each owner counts its bundle, in
memory and in ranges, and the next owner goes on where it was.
"""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.status import error_from_proto
from ledgermq_ledger.topics.topic import Topic
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.timed_messages import BUNDLES, SMALL
from tests.broker.timer_calls import (
    Timed,
    bundle_of,
    held_of,
    now_s,
    send,
    send_once,
    served,
    timed_batch,
    timed_frame,
    watched,
)
from tests.broker.transaction_calls import beginner, stage_once, timed_stage_frame
from tests.waiting import until

DAY_S = 86_400


def later(count: int, in_s: float, name: str = "m") -> list[Timed]:
    return [(b"%s%d" % (name.encode(), number), now_s() + in_s + number) for number in range(count)]


async def outcome(cluster: Cluster, topic: str, partition: int, *messages: Timed) -> str:
    """The code of the first answer of the owner that is not about the way to it; "" if it took them."""
    while True:
        owner = await cluster.owner_of(topic, partition)
        result = await send_once(cluster, owner, timed_frame(topic, partition, messages))
        if result.error.code not in ("NOT_OWNER", "UNAVAILABLE"):
            return result.error.code
        await asyncio.sleep(0.05)


def topic_of(cluster: Cluster, name: str) -> Topic:
    return next(iter(cluster.brokers.values())).metadata.catalog.topics_by_name[name]


async def alter(cluster: Cluster, name: str, bound: int) -> None:
    request = pb.AlterTopicRequest(name=name, set={"delayed.pending.max": str(bound)})
    await cluster.line("a:1").alter_topic(request)


@in_cluster("a:1", constants=SMALL, **BUNDLES)
async def test_a_topic_has_no_more_waiting_messages_than_its_setting_says(cluster: Cluster) -> None:
    await cluster.create("t", 1, delayed_pending_max="5")
    await cluster.create("free", 1)
    async with watched(cluster, "t", 0) as watcher:
        await send(cluster, "t", 0, *later(3, 20))
        await send(cluster, "t", 0, *later(4, DAY_S, "far"))  # it begins below the bound, and passes as a whole
        assert await outcome(cluster, "t", 0, *later(1, 30)) == "RESOURCE_EXHAUSTED"
        await send(cluster, "free", 0, *later(20, 30))
        await watcher.until(3)
        assert await outcome(cluster, "t", 0, *later(1, 30, "next")) == ""
        assert await outcome(cluster, "t", 0, *later(1, 30)) == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("graceful", [True, False])
def test_the_next_owner_counts_what_waits_in_memory_and_in_ranges(graceful: bool) -> None:
    @in_cluster("a:1", constants=SMALL, **BUNDLES)
    async def run(cluster: Cluster) -> None:
        await cluster.create("t", 1, delayed_pending_max="9")
        await cluster.create("other", 1)
        bundle = await bundle_of(cluster, "t", 0)
        topic_id = topic_of(cluster, "t").id
        for in_s in (50, 700, DAY_S):
            await send(cluster, "t", 0, *later(3, in_s))
            await send(cluster, "other", 0, *later(5, in_s))
        await until(lambda: len(held_of(cluster, bundle).timers.ranges) >= 2, 10)
        held = held_of(cluster, bundle)
        assert held.messages_of(topic_id) == 9
        assert sum(found.topics.get(topic_id, 0) for found in held.timers.ranges.values()) >= 6
        await cluster.start("b:1")
        await cluster.stop("a:1", graceful=graceful)
        assert await outcome(cluster, "t", 0, *later(1, 60)) == "RESOURCE_EXHAUSTED"
        assert held_of(cluster, bundle).messages_of(topic_id) == 9
        async with watched(cluster, "t", 0) as watcher:
            await watcher.until(6, 2000)  # ranges are turned and loaded on the way
        assert held_of(cluster, bundle).messages_of(topic_id) == 3
        await send(cluster, "t", 0, *later(6, 60))
        assert await outcome(cluster, "t", 0, *later(1, 60)) == "RESOURCE_EXHAUSTED"
        assert held_of(cluster, bundle).messages_of(topic_id) == 9

    run()


@in_cluster("a:1", **BUNDLES)
async def test_the_answer_says_how_much_waits_and_when_to_come_back(cluster: Cluster) -> None:
    await cluster.create("t", 1, delayed_pending_max="2")
    await send(cluster, "t", 0, *later(2, 10))
    result = await send_once(cluster, "a:1", timed_frame("t", 0, later(1, 10)))
    error = error_from_proto(result.error)
    assert isinstance(error, ResourceExhausted)
    assert "topic 't': 2 timed messages wait in bundle" in error.message
    assert "delayed.pending.max = 2" in error.message
    assert 8_000 < (error.retry_after_ms or 0) <= 10_000


@in_cluster("a:1", **BUNDLES)
async def test_each_bundle_allows_its_share_and_a_frame_keeps_what_other_topics_sent(cluster: Cluster) -> None:
    """A topic of four partitions: the bound of 8 is two messages for each."""
    await cluster.create("t", 4, delayed_pending_max="8")
    await cluster.create("free", 4)
    bundles = topic_of(cluster, "t").bundles
    taken = 0
    for partition in range(4):
        while await outcome(cluster, "t", partition, *later(1, DAY_S)) == "":
            taken += 1
    assert taken == sum(-(-8 * bundles.count(bundle) // 4) for bundle in set(bundles)) == 8
    free = topic_of(cluster, "free").bundles.index(bundles[0])
    batches = [timed_batch("t", 0, later(1, 30)), timed_batch("free", free, later(1, 30))]
    header = pb.ProduceHeader(batches=[header for header, _ in batches], acks=pb.DURABLE)
    frame = Frame(header, [data for _, data in batches])
    refused, stored = (await cluster.line("a:1").produce_delayed_once(frame)).results
    assert refused.error.code == "RESOURCE_EXHAUSTED"
    assert not stored.HasField("error")


@in_cluster("a:1", **BUNDLES)
async def test_a_bound_that_is_raised_lets_more_in_and_one_of_0_nothing(cluster: Cluster) -> None:
    await cluster.create("t", 1, delayed_pending_max="0")
    assert await outcome(cluster, "t", 0, *later(1, 10)) == "RESOURCE_EXHAUSTED"
    await alter(cluster, "t", 1)
    assert await outcome(cluster, "t", 0, *later(1, 10)) == ""
    assert await outcome(cluster, "t", 0, *later(1, 10)) == "RESOURCE_EXHAUSTED"
    await alter(cluster, "t", -1)
    assert await outcome(cluster, "t", 0, *later(1, 10)) == ""


@in_cluster("a:1", **BUNDLES)
async def test_delayed_records_of_a_transaction_count_when_it_is_committed(cluster: Cluster) -> None:
    await cluster.create("t", 1, delayed_pending_max="2")
    producer = await beginner(cluster, "orders")
    await producer.send_timed("t", 0, *later(2, 600))
    assert await outcome(cluster, "t", 0, *later(1, 600)) == ""
    await producer.commit()
    await producer.completed()
    topic_id, bundle = topic_of(cluster, "t").id, await bundle_of(cluster, "t", 0)
    await until(lambda: served(cluster)[bundle].held.messages_of(topic_id) == 3, 10)
    assert await outcome(cluster, "t", 0, *later(1, 600)) == "RESOURCE_EXHAUSTED"
    other = await beginner(cluster, "more")
    [refused] = await stage_once(cluster, "a:1", timed_stage_frame(other.ref, "t", 0, 0, later(1, 600)), delayed=True)
    assert refused.error.code == "RESOURCE_EXHAUSTED"


@in_cluster("a:1", **BUNDLES)
async def test_many_at_once_do_not_pass_the_bound(cluster: Cluster) -> None:
    """Sends whose outcome is not known yet count."""
    await cluster.create("t", 1, delayed_pending_max="10")
    line = cluster.line("a:1")
    answers = await asyncio.gather(*(line.produce_delayed_once(timed_frame("t", 0, later(1, 600))) for _ in range(40)))
    assert sum(not answer.results[0].HasField("error") for answer in answers) == 10

"""Check when timed messages come, through the brokers' services, without the client. Time is virtual: a year passes
in a second.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.timed.counts import TimerCounts
from ledgermq_broker.timed.state.places import MARGINS_US, WIDTHS_US
from ledgermq_ledger import keys
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.broker.timed_messages import BUNDLES, DAY_S, HOUR_S, SLOW, SMALL, lateness_s, numbered, seldom_looks
from tests.broker.timer_calls import (
    Sender,
    Watcher,
    bundle_of,
    constants_of,
    held_of,
    listed,
    now_s,
    recall,
    send,
    send_once,
    served,
    timed_frame,
    us_of,
    watched,
)
from tests.virtual_time import virtual
from tests.waiting import until

calm = pytest.fixture(seldom_looks)


@in_cluster("a:1", **BUNDLES)
async def test_messages_come_in_the_order_of_their_times_and_never_early(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    begun_s = now_s()
    async with watched(cluster, "t", 0) as watcher:
        await send(cluster, "t", 0, (b"30", begun_s + 30), (b"5", begun_s + 5), (b"10", begun_s + 10))
        await send(cluster, "t", 0, (b"7", begun_s + 7))
        assert await watcher.until(4) == [b"5", b"7", b"10", b"30"]
        assert all(
            0 <= late_s < 0.2 for late_s in lateness_s(watcher, {b"%d" % s: begun_s + s for s in (5, 7, 10, 30)})
        )


@in_cluster("a:1", **BUNDLES)
async def test_a_message_that_is_late_comes_at_once_and_messages_of_one_time_in_the_order_of_sending(
    cluster: Cluster,
) -> None:
    await cluster.create("t", 1)
    due_s = now_s() + 5
    async with watched(cluster, "t", 0) as watcher:
        for value in (b"a", b"b", b"c"):
            await send(cluster, "t", 0, (value, due_s), (value + value, due_s))
        await send(cluster, "t", 0, (b"late", now_s() - 1000))
        assert await watcher.until(1) == [b"late"]
        assert watcher.seen[0][1] < due_s
        assert await watcher.until(7) == [b"late", b"a", b"aa", b"b", b"bb", b"c", b"cc"]
        await send(cluster, "t", 0, (b"later", due_s - 3))
        assert (await watcher.until(8))[-1] == b"later"


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_partitions_of_all_bundles_get_their_messages_in_one_batch_each(cluster: Cluster) -> None:
    await cluster.create("t", 4)
    due_s = now_s() + 10
    watchers = [Watcher(cluster, "t", partition) for partition in range(4)]
    for number in range(20):
        await send(cluster, "t", number % 4, (b"%d" % number, due_s))
    for partition, watcher in enumerate(watchers):
        assert await watcher.until(5) == [b"%d" % number for number in range(partition, 20, 4)]
        await watcher.close()


@in_cluster("a:1", **BUNDLES)
async def test_a_repeated_send_is_delivered_once_also_after_its_delivery_and_to_the_next_owner(
    cluster: Cluster,
) -> None:
    await cluster.create("t", 1)
    sender = await Sender(cluster, "t", 0).open()
    due_s = now_s() + 5
    async with watched(cluster, "t", 0) as watcher:
        first = await sender.send((b"a", due_s))
        assert await sender.repeat(0, (b"a", due_s)) == first
        second = await sender.send((b"b", due_s))
        assert second == first + 1
        assert await watcher.until(2) == [b"a", b"b"]
        assert await sender.repeat(1, (b"b", due_s)) == second
        await cluster.start("b:1")
        await cluster.stop("a:1")
        assert await sender.repeat(1, (b"b", due_s)) == second
        await sender.send((b"c", due_s))
        assert await watcher.until(3) == [b"a", b"b", b"c"]


@in_cluster("a:1", **BUNDLES)
async def test_messages_of_a_removed_topic_are_dropped_and_those_of_its_namesake_come(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.create("other", 1)
    due_s = now_s() + 60
    async with watched(cluster, "other", 0) as watcher:
        await send(cluster, "t", 0, (b"old", due_s))
        await send(cluster, "other", 0, (b"x", due_s + 1))
        await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name="t"))
        await until(lambda: "t" not in cluster.brokers["a:1"].metadata.catalog.topics_by_name, 50)
        await cluster.create("t", 1)
        await send(cluster, "t", 0, (b"new", due_s))
        assert await watcher.until(1) == [b"x"]
        assert await cluster.read_all("t", 0) == [b"new"]


@in_cluster("a:1", constants=SMALL, **BUNDLES, **SLOW)
async def test_messages_pass_ranges_of_all_widths_and_each_comes_at_its_time(cluster: Cluster, calm: None) -> None:
    await cluster.create("t", 1)
    begun_s = now_s()
    dues_s = [30, 250, 1000, 1300, 5 * HOUR_S, 5 * HOUR_S + 7, 3 * DAY_S, 8 * DAY_S, 8 * DAY_S + 1.5]
    dues = {b"%d" % number: begun_s + due_s for number, due_s in enumerate(dues_s)}
    async with watched(cluster, "t", 0) as watcher:
        await send(cluster, "t", 0, *dues.items())
        await until(lambda: held_of(cluster).waiting.rows <= 1, 10)
        widths = {found.width_us for found in held_of(cluster).timers.ranges.values()}
        assert widths == set(WIDTHS_US)
        assert MARGINS_US.keys() == widths
        assert await watcher.until(9, 9 * DAY_S) == list(dues)
        assert all(0 <= late_s < 12 for late_s in lateness_s(watcher, dues))
        await asyncio.sleep(100)
        held = held_of(cluster, await bundle_of(cluster, "t", 0))
        assert not held.timers.ranges
        assert not held.waiting.rows


@virtual
async def test_a_wrong_clock_of_a_machine_changes_no_time_of_delivery() -> None:
    async with cluster_of(**BUNDLES) as cluster:
        await cluster.start("ahead:1", skew_s=7200)
        await cluster.start("behind:1", skew_s=-7200)
        await cluster.settled()
        await cluster.create("t", 2)
        begun_s = now_s()
        watchers = [Watcher(cluster, "t", partition) for partition in (0, 1)]
        for partition in (0, 1):
            await send(cluster, "t", partition, (b"a", begun_s + 10), (b"b", begun_s + 20))
        for watcher in watchers:
            assert await watcher.until(2) == [b"a", b"b"]
            assert all(0 <= late_s < 1 for late_s in lateness_s(watcher, {b"a": begun_s + 10, b"b": begun_s + 20}))
            await watcher.close()


@in_cluster("a:1", constants=constants_of(flush_after_ms=1000), **BUNDLES, **SLOW)
async def test_a_message_waits_a_year(cluster: Cluster, calm: None) -> None:
    await cluster.create("t", 1)
    due_s = now_s() + 365 * DAY_S
    async with watched(cluster, "t", 0) as watcher:
        await send(cluster, "t", 0, (b"happy", due_s))
        assert await watcher.until(1, 366 * DAY_S) == [b"happy"]
        assert 0 <= watcher.seen[0][1] - due_s <= 12, "the clock drifts for six hours after a reading"


@in_cluster("a:1", **BUNDLES)
async def test_what_is_due_in_more_than_a_year_is_refused_alone(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    frame = timed_frame("t", 0, [(b"x", now_s() + 367 * DAY_S)])
    near = timed_frame("t", 0, [(b"y", now_s() + 1)])
    frame.header.batches.extend(near.header.batches)
    both = replace(frame, payload=[*frame.payload, *near.payload])
    refused, taken = (await cluster.line("a:1").produce_delayed_once(both)).results
    assert refused.error.code == "INVALID_RECORD"
    assert "367" in refused.error.message
    assert "366 days" in refused.error.message
    assert not taken.HasField("error")


@in_cluster("a:1", **BUNDLES)
async def test_timed_messages_are_refused_without_durability_and_in_topics_of_the_system(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.create("closed", 1, accept_publish="false")
    received = await send_once(cluster, "a:1", timed_frame("t", 0, [(b"x", now_s() + 1)], acks=pb.RECEIVED))
    assert received.error.code == "INVALID_REQUEST"
    assert "acks=durable" in received.error.message
    await send(cluster, "t", 0, (b"x", now_s() + 1))
    for topic in (keys.DELAYED_TOPIC, keys.DELAYED_FAR_TOPIC, keys.TIMERS_TOPIC, keys.METADATA_TOPIC, "closed"):
        result = await send_once(cluster, "a:1", timed_frame(topic, 0, [(b"x", now_s() + 1)]))
        assert result.error.code == "PUBLISH_NOT_ACCEPTED", topic


@in_cluster("a:1", **BUNDLES)
async def test_what_waits_is_listed_in_the_order_of_its_times(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.create("u", 1)
    begun_s = now_s()
    bundle = await bundle_of(cluster, "t", 0)
    await send(cluster, "t", 0, (b"b", begun_s + 20), (b"a", begun_s + 10))
    await send(cluster, "u", 0, (b"c", begun_s + 15))
    answer = await listed(cluster, bundle, max_messages=10, topic="t")
    assert [(m.topic, m.offset, m.row, m.due_us) for m in answer.messages] == [
        ("t", 0, 1, us_of(begun_s + 10)),
        ("t", 0, 0, us_of(begun_s + 20)),
    ]
    assert answer.summary.next_due_us == us_of(begun_s + 10)
    assert answer.summary.now_us <= us_of(now_s())
    everything = await listed(cluster, bundle, max_messages=1)
    assert len(everything.messages) == 1
    assert everything.left == everything.summary.messages - 1


@in_cluster("a:1", **BUNDLES)
async def test_deliveries_yield_to_live_producers_and_go_on(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.create("t", 1)
    owner = cluster.brokers["a:1"].ownership.opened[await bundle_of(cluster, "t", 0)]
    due_s = now_s() + 5
    async with watched(cluster, "t", 0) as watcher:
        await send(cluster, "t", 0, *numbered(10, due_s))
        memory = cluster.brokers["a:1"].context.produce_memory
        await asyncio.sleep(4)
        taken = memory.bytes_max - memory.taken
        assert memory.take(taken)
        await asyncio.sleep(5)
        assert not watcher.seen
        assert owner.lost is None
        memory.give(taken)
        assert await watcher.until(10) == [value for value, _ in numbered(10, 0)]


@in_cluster("a:1", constants=SMALL, **BUNDLES, **SLOW)
async def test_waiting_messages_cost_no_request(cluster: Cluster, calm: None) -> None:
    await cluster.create("t", 1)
    await send(cluster, "t", 0, (b"later", now_s() + 5 * HOUR_S))
    await asyncio.sleep(400)
    bundle = await bundle_of(cluster, "t", 0)
    slot = cluster.brokers["a:1"].ownership.opened[bundle].status().slot
    await asyncio.sleep(2 * HOUR_S)
    assert cluster.brokers["a:1"].ownership.opened[bundle].status().slot == slot


class Counts(TimerCounts):
    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def taken_in(self, bundle: int, messages: int, size_bytes: int) -> None:
        self.calls.append(("taken in", messages))

    def delivered(self, bundle: int, messages: int, size_bytes: int, late_ms: float) -> None:
        self.calls.append(("delivered", messages, late_ms < 1000))

    def dropped(self, bundle: int, messages: int, why: str) -> None:
        self.calls.append(("dropped", messages, why))

    def recalled(self, bundle: int, outcome: str) -> None:
        self.calls.append(("recalled", outcome))


@in_cluster(**BUNDLES)
async def test_a_broker_counts_what_it_takes_in_delivers_and_drops(cluster: Cluster) -> None:
    cluster.counts["a:1"] = [counts := Counts()]
    await cluster.start("a:1")
    await cluster.settled()
    await cluster.create("t", 1)
    due_s = now_s() + 5
    async with watched(cluster, "t", 0) as watcher:
        offset = await send(cluster, "t", 0, *numbered(3, due_s))
        await recall(cluster, "t", 0, offset, 0, due_s)
        [sizes] = [part.sizes() for part in served(cluster).values() if part.sizes().messages]
        assert (sizes.messages, sizes.in_memory, sizes.recalls, sizes.overdue_s, sizes.troubles) == (3, 3, 1, 0.0, 0)
        await watcher.until(2)
    assert counts.calls == [
        ("taken in", 3),
        ("recalled", "recalled"),
        ("dropped", 1, "recalled"),
        ("delivered", 2, True),
    ]


@in_cluster("a:1", constants=SMALL, **(BUNDLES | SLOW | {"background_compaction": True}))
async def test_a_range_that_became_parquet_is_read_back_and_names_no_file_to_plain_readers(
    cluster: Cluster, calm: None
) -> None:
    await cluster.create("t", 1)
    begun_s = now_s()
    messages = numbered(100, begun_s + 8 * HOUR_S, 60.0)
    async with watched(cluster, "t", 0) as watcher:
        await send(cluster, "t", 0, *messages)
        await asyncio.sleep(5 * HOUR_S)
        files = [info.key async for info in cluster.store.list("") if info.key.endswith(".parquet")]
        assert files
        assert not [key for key in files if key.startswith("parquet/")]
        assert await watcher.until(100, 10 * HOUR_S) == [value for value, _ in messages]
        assert all(0 <= late_s < 12 for late_s in lateness_s(watcher, dict(messages)))

"""Check timed messages through the brokers' services, without the client, in virtual time: each once, in
order of its time and never early, whatever becomes of brokers, clocks and the store meanwhile.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ledgermq.errors import InvalidRequest, StoreFull
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.bundle.shared import write_gate
from ledgermq_broker.cluster import pulse
from ledgermq_broker.timed.counts import TimerCounts
from ledgermq_broker.timed.state.places import MARGINS_US, WIDTHS_US
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.broker.timer_calls import (
    Sender,
    Timed,
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
from tests.stores.full import RefusingStore
from tests.virtual_time import virtual, virtual_sources
from tests.waiting import until
from tests.worlds.damage import damage_batch

BUNDLES = {"bundles": 3}
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
SMALL = constants_of(flush_after_ms=1000, chunk_bytes=400, log_start_ms=5000)
"""Flushes at once, in many small pieces."""
SLOW = {"heartbeat_interval_ms": 6 * 3_600_000, "holding_ms": 0}
"""With `calm`, for tests that take days."""


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers look seldom whether they stood still, and whether there is room."""
    monkeypatch.setattr(pulse, "BEAT_S", 6 * 3600.0)
    monkeypatch.setattr(write_gate, "RESERVE_LOOK_S", 6 * 3600.0)


def lateness_s(watcher: Watcher, dues: dict[bytes, float]) -> list[float]:
    return [seen_s - dues[value] for value, seen_s in watcher.seen]


def numbered(count: int, first_s: float, step_s: float = 0.0, name: str = "m") -> list[Timed]:
    return [(b"%s%d" % (name.encode(), number), first_s + number * step_s) for number in range(count)]


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


@pytest.mark.parametrize("graceful", [True, False])
def test_the_next_owner_delivers_what_waits_in_memory_and_in_ranges(graceful: bool) -> None:
    @in_cluster("a:1", constants=SMALL, **BUNDLES)
    async def run(cluster: Cluster) -> None:
        await cluster.create("t", 1)
        begun_s = now_s()
        dues = {b"%d" % s: begun_s + s for s in (20, 80, 100, 200, 300, 700, 1500)}
        async with watched(cluster, "t", 0) as watcher:
            await send(cluster, "t", 0, *dues.items())
            await until(lambda: len(held_of(cluster).timers.ranges) >= 3, 10)
            assert held_of(cluster).waiting.rows >= 2
            await cluster.start("b:1")
            await cluster.stop("a:1", graceful=graceful)
            assert await watcher.until(7, 3000) == list(dues)
            assert all(0 <= late_s < 20 for late_s in lateness_s(watcher, dues)[:1])
            assert all(0 <= late_s < 1 for late_s in lateness_s(watcher, dues)[1:])

    run()


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_chunk_in_flight_when_its_owner_dies_is_delivered_once(is_dropped: bool) -> None:
    """The owner hangs in the put of a delivery, and dies; the put has landed, or not."""

    @in_cluster("a:1", "b:1", constants=SMALL, **BUNDLES)
    async def run(cluster: Cluster) -> None:
        await cluster.create("t", 1)
        due_s = now_s() + 5
        messages = numbered(40, due_s)
        async with watched(cluster, "t", 0) as watcher:
            await send(cluster, "t", 0, *messages)
            owner = await cluster.owner_of("t", 0)
            if is_dropped:
                await asyncio.sleep(due_s - now_s() - 0.5)
                cluster.views[owner].pause()
                await asyncio.sleep(1.5)
            else:
                await asyncio.sleep(due_s - now_s())
            await cluster.stop(owner, graceful=False)
            assert await watcher.until(40) == [value for value, _ in messages]

    run()


@in_cluster("a:1", "b:1", constants=constants_of(recall_kept_ms=60_000), **BUNDLES)
async def test_a_message_is_recalled_before_its_time_and_never_after_it(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    due_s = now_s() + 10
    async with watched(cluster, "t", 0) as watcher:
        offset = await send(cluster, "t", 0, *numbered(4, due_s))
        assert await recall(cluster, "t", 0, offset, 1, due_s) == "RECALLED"
        assert await recall(cluster, "t", 0, offset, 1, due_s) == "RECALLED"
        await cluster.stop(await cluster.owner_of("t", 0), graceful=False)
        assert await recall(cluster, "t", 0, offset, 3, due_s) == "RECALLED"
        assert await watcher.until(2) == [b"m0", b"m2"]
        assert await recall(cluster, "t", 0, offset, 0, due_s) == "TOO_LATE"
        assert await recall(cluster, "t", 0, offset, 1, due_s) == "RECALLED", "again, when its time has passed"
        await asyncio.sleep(MINUTE_S + 10)
        await send(cluster, "t", 0, (b"later", now_s()))
        await watcher.until(3)
        for row in (0, 1, 2):
            assert await recall(cluster, "t", 0, offset, row, due_s) == "FORGOTTEN"
        assert not any(part.held.timers.recalls for part in served(cluster).values())
        assert watcher.values == [b"m0", b"m2", b"later"]


@in_cluster("a:1", constants=SMALL, **BUNDLES, **SLOW)
async def test_a_message_in_a_range_is_recalled(cluster: Cluster, calm: None) -> None:
    await cluster.create("t", 1)
    due_s = now_s() + 2 * HOUR_S
    async with watched(cluster, "t", 0) as watcher:
        offset = await send(cluster, "t", 0, *numbered(3, due_s))
        await until(lambda: not held_of(cluster).waiting.rows, 10)
        assert await recall(cluster, "t", 0, offset, 1, due_s) == "RECALLED"
        assert await watcher.until(2, 3 * HOUR_S) == [b"m0", b"m2"]


@pytest.mark.parametrize("is_far", [False, True], ids=["in memory", "in a range"])
@in_cluster("a:1", bundles=2, constants=SMALL, **SLOW)
async def test_a_recall_by_another_topic_recalls_nothing(cluster: Cluster, calm: None, is_far: bool) -> None:
    """Who may produce to one topic could recall the messages of all topics in its bundle."""
    for name in ("t", "other"):
        await cluster.create(name, 1)
    due_s = now_s() + (2 * HOUR_S if is_far else 5)
    async with watched(cluster, "t", 0) as watcher:
        offset = await send(cluster, "t", 0, *numbered(3, due_s))
        if is_far:
            await until(lambda: not held_of(cluster).waiting.rows, 10)
        assert await recall(cluster, "other", 0, offset, 1, due_s) == "RECALLED", "there is none of that topic"
        assert await recall(cluster, "other", 0, offset, 2, due_s) == "RECALLED"
        assert await recall(cluster, "t", 0, offset, 2, due_s) == "RECALLED"
        listing = await listed(cluster, 1, topic="t", max_messages=10)
        assert [message.row for message in listing.messages] == ([] if is_far else [0, 1])
        await cluster.stop("a:1", graceful=False)
        await cluster.start("a:1")
        assert await watcher.until(2, 3 * HOUR_S) == [b"m0", b"m1"]


@in_cluster("a:1", **BUNDLES)
async def test_a_recall_of_what_was_never_sent_is_refused(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    with pytest.raises(InvalidRequest, match="no timed message yet"):
        await recall(cluster, "t", 0, 0, 0, now_s() + 5)
    offset = await send(cluster, "t", 0, (b"a", now_s() + 5))
    with pytest.raises(InvalidRequest, match="none has number"):
        await recall(cluster, "t", 0, offset + 1, 0, now_s() + 5)
    with pytest.raises(InvalidRequest, match="as late as"):
        await recall(cluster, "t", 0, offset, 0, now_s() + 1000 * DAY_S)


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


@virtual
async def test_a_store_that_is_full_delays_deliveries_and_loses_none() -> None:
    store = RefusingStore()
    async with cluster_of("a:1", store=store, constants=SMALL, **BUNDLES) as cluster:
        await cluster.create("t", 2)
        begun_s = now_s()
        watchers = [Watcher(cluster, "t", partition) for partition in (0, 1)]
        sender = await Sender(cluster, "t", 0).open()
        await sender.send(*numbered(50, begun_s + 5, 0.2))
        await send(cluster, "t", 1, *numbered(50, begun_s + 5, 4.0))
        await asyncio.sleep(8)
        store.refusal = StoreFull("no space is left")
        refused = asyncio.create_task(sender.send((b"after", begun_s + 20)))
        await asyncio.sleep(30)
        seen = len(watchers[0].seen)
        assert 0 < seen < 50
        store.refusal = None
        await refused
        assert await watchers[0].until(51) == [value for value, _ in numbered(50, 0)] + [b"after"]
        assert await watchers[1].until(50) == [value for value, _ in numbered(50, 0)]
        for watcher in watchers:
            await watcher.close()


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


@virtual
async def test_a_damaged_block_is_named_by_its_object_and_is_delivered_when_it_is_repaired() -> None:
    store = MemoryStore("", virtual_sources(1000))
    async with cluster_of("a:1", store=store, **BUNDLES) as cluster:
        await cluster.create("t", 1)
        due_s = now_s() + 60
        await send(cluster, "t", 0, (b"first", due_s))
        bundle = await bundle_of(cluster, "t", 0)
        slot = cluster.brokers["a:1"].ownership.opened[bundle].status().slot
        place = held_of(cluster).logs.intake
        await cluster.stop("a:1", graceful=False)
        key = keys.segment(bundle, slot)
        sound = await store.get(key)
        await damage_batch(store, bundle, slot, place)
        await cluster.start("b:1")
        await cluster.settled()
        async with watched(cluster, "t", 0) as watcher:
            await asyncio.sleep(80)
            assert not watcher.seen
            answer = await listed(cluster, bundle)
            assert key in answer.summary.trouble
            cluster_info = await cluster.line("b:1").describe_cluster(pb.DescribeClusterRequest())
            assert any("timed messages" in problem and key in problem for problem in cluster_info.problems)
            await store.delete([key])
            await store.put_if_absent(key, [sound])
            assert await watcher.until(1) == [b"first"]
            assert not (await listed(cluster, bundle)).summary.trouble


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_broker_of_a_release_without_timed_messages_keeps_them_from_being_sent(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    controller = next(broker for broker in cluster.brokers.values() if 0 in broker.ownership.terms.opened)
    older = next(broker for broker in cluster.brokers.values() if broker is not controller)
    older.membership.me = replace(older.membership.me, features=(), release="0.0.9")
    name = older.broker_id
    await until(lambda: controller.membership.present()[name].release == "0.0.9", 10)
    owner = await cluster.owner_of("t", 0)
    result = await send_once(cluster, owner, timed_frame("t", 0, [(b"x", now_s() + 1)]))
    assert result.error.code == "UNAVAILABLE"
    assert "timers need every broker" in result.error.message
    assert keys.TIMERS_TOPIC not in controller.metadata.catalog.topics_by_name
    assert not (await listed(cluster, 1)).HasField("summary")
    await cluster.stop(older.address)
    await until(lambda: name not in controller.membership.present(), 30)
    await send(cluster, "t", 0, (b"x", now_s() + 1))


@in_cluster("a:1", **BUNDLES)
async def test_after_a_bug_the_state_is_loaded_when_all_sends_have_an_outcome(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send is in flight while the state fails: its message is in the next state, too."""
    await cluster.create("t", 1)
    async with watched(cluster, "t", 0) as watcher:
        due_s = now_s() + 20
        await send(cluster, "t", 0, (b"before", due_s))
        bundle = await bundle_of(cluster, "t", 0)
        failed = served(cluster)[bundle]
        cluster.views["a:1"].pause()
        sending = asyncio.create_task(send(cluster, "t", 0, (b"in flight", due_s + 1)))
        await asyncio.sleep(0.2)
        failed.held.state.broken(AssertionError("a bug"))
        await asyncio.sleep(3)
        assert not sending.done()
        cluster.views["a:1"].resume()
        await sending
        assert await watcher.until(2) == [b"before", b"in flight"]
        assert served(cluster)[bundle] is not failed


@in_cluster("a:1", **BUNDLES)
async def test_a_send_whose_caller_goes_away_is_delivered_like_others(cluster: Cluster) -> None:
    """Its block is on its way, and nothing cancels that; the blocks behind it come into memory, too."""
    await cluster.create("t", 1)
    async with watched(cluster, "t", 0) as watcher:
        due_s = now_s() + 20
        await send(cluster, "t", 0, (b"before", due_s))
        cluster.views["a:1"].pause()
        sending = asyncio.create_task(send(cluster, "t", 0, (b"left alone", due_s + 1)))
        await asyncio.sleep(0.2)
        sending.cancel()
        await asyncio.sleep(0.2)
        cluster.views["a:1"].resume()
        await send(cluster, "t", 0, (b"behind", due_s + 2))
        assert await watcher.until(3) == [b"before", b"left alone", b"behind"]


async def earliest_in_intake(cluster: Cluster, bundle: int) -> int:
    owner, logs = served(cluster)[bundle].held.logs.owner, served(cluster)[bundle].held.logs
    [catalog] = {id(each.metadata): each.metadata.catalog for each in cluster.brokers.values()}.values()
    return await owner.list_offset(catalog.topics_by_id[logs.intake.topic_id], logs.intake.partition, "earliest")


@in_cluster("a:1", constants=constants_of(flush_after_ms=1000, log_start_ms=600_000), **BUNDLES)
async def test_the_next_owner_frees_what_the_former_one_has_delivered(cluster: Cluster) -> None:
    """Although it delivers and moves nothing itself."""
    await cluster.create("t", 1)
    bundle = await bundle_of(cluster, "t", 0)
    async with watched(cluster, "t", 0) as watcher:
        await send(cluster, "t", 0, (b"soon", now_s() + 3.5))
        await watcher.until(1)
        await asyncio.sleep(300)
        await cluster.stop("a:1", graceful=False)
        await cluster.start("b:1")
        await until(lambda: bundle in served(cluster), 60)
        assert await earliest_in_intake(cluster, bundle) == 0, "the former owner had no time for it"
        await asyncio.sleep(700)
        assert await earliest_in_intake(cluster, bundle) == 1


@in_cluster("a:1", constants=SMALL, **BUNDLES)
async def test_logs_of_delivered_messages_begin_later_and_those_of_waiting_ones_stay(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    begun_s = now_s()
    async with watched(cluster, "t", 0) as watcher:
        await send(cluster, "t", 0, (b"soon", begun_s + 5), (b"minutes", begun_s + 200))
        await send(cluster, "t", 0, (b"hours", begun_s + 5 * HOUR_S))
        await watcher.until(2)
        await asyncio.sleep(300)
        held = held_of(cluster)
        owner, logs = held.logs.owner, held.logs
        catalog = cluster.brokers["a:1"].metadata.catalog

        async def earliest(place):  # type: ignore[no-untyped-def]
            return await owner.list_offset(catalog.topics_by_id[place.topic_id], place.partition, "earliest")

        assert await earliest(logs.intake) == 2, "both blocks are delivered or moved"
        [waiting] = held.timers.ranges
        assert waiting.far
        assert await earliest(logs.place_of(waiting)) == held.timers.ranges[waiting].begin_offset
        for range_id in [each for each in logs._next if each != waiting and logs.next_offset(each)]:
            assert await earliest(logs.place_of(range_id)) == logs.next_offset(range_id)


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

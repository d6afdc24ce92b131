"""Timed messages while owners die, stores are full, blocks are damaged and callers go away."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ledgermq.errors import StoreFull
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.broker.timed_messages import BUNDLES, HOUR_S, SMALL, lateness_s, numbered
from tests.broker.timer_calls import (
    Sender,
    Watcher,
    bundle_of,
    constants_of,
    held_of,
    listed,
    now_s,
    send,
    send_once,
    served,
    timed_frame,
    watched,
)
from tests.stores.faulty import Faults, FaultyStore
from tests.stores.full import RefusingStore
from tests.virtual_time import virtual, virtual_sources
from tests.waiting import until
from tests.worlds.damage import damage_batch


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


@virtual
async def test_a_message_that_is_no_longer_listed_is_in_its_partition() -> None:
    """Each call to the store takes a while, so deliveries are under way while a list is asked for."""
    sources = virtual_sources(1000)
    store = FaultyStore(MemoryStore("", sources), sources)
    async with cluster_of("a:1", store=store, **BUNDLES) as cluster:
        await cluster.create("t", 1)
        bundle, messages = await bundle_of(cluster, "t", 0), numbered(100, now_s() + 5, 0.01)
        await send(cluster, "t", 0, *messages)
        store.faults = Faults(delay_s_max=0.1)
        while left := (await listed(cluster, bundle)).summary.messages:
            delivered = await cluster.read_all("t", 0)
            assert len(delivered) >= len(messages) - left, "in neither place"
        assert await cluster.read_all("t", 0) == [value for value, _ in messages]

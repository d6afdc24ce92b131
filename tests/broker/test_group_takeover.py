"""Replace coordinators that were killed, paused, handed over, or have damaged logs; in virtual
time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from ledgermq.errors import DataDamaged, LedgerMQError, NotOwner, RetriableError, StaleAssignment, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq_broker.groups.offsets_topic import partition_of
from ledgermq_ledger import keys
from ledgermq_ledger.log.segments.segment import read_index
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.broker.groups import (
    Member,
    Outsider,
    ask,
    commit,
    commit_of,
    committed,
    committed_offset,
    coordinator_of,
    settled,
)
from tests.virtual_time import virtual, virtual_sources
from tests.waiting import until


def bundle_of(cluster: Cluster, group: str) -> int:
    topic = next(iter(cluster.brokers.values())).metadata.catalog.topics_by_name[keys.OFFSETS_TOPIC]
    return topic.bundles[partition_of(group, topic.partitions)]


def fetch_committed(
    line: Connection, group: str, topic: str = "t", partition: int = 0
) -> asyncio.Task[pb.FetchCommittedResponse]:
    wanted = pb.TopicPartition(topic=topic, partition=partition)
    request = pb.FetchCommittedRequest(group=group, partitions=[wanted])
    return asyncio.ensure_future(line.fetch_committed(request))  # type: ignore[arg-type]


@in_cluster("a:1", "b:1", "c:1")
async def test_a_coordinator_killed_while_commits_flow_takes_none_back(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, *[b"x"] * 400)
    group = Outsider(cluster, "g")
    acknowledged = 0
    done = False

    async def keep_committing() -> None:
        nonlocal acknowledged
        for offset in range(1, 401):
            assert await group.commit(("t", 0, offset)) == [""]
            acknowledged = offset
            await asyncio.sleep(0.02)

    async def keep_looking() -> None:
        seen = 0
        while not done:
            before = acknowledged
            found = await committed_offset(cluster, "g", "t", 0) or 0
            assert found >= max(seen, before), "it went back"
            seen = found
            await asyncio.sleep(0.03)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keep_looking())
        committing = tasks.create_task(keep_committing())
        for i in range(4):
            await asyncio.sleep(1.5)
            await cluster.stop(await coordinator_of(cluster, "g"), graceful=False)
            await cluster.start(f"d{i}:1")
        await committing
        done = True
    assert await committed_offset(cluster, "g", "t", 0) == 400


@in_cluster("a:1", "b:1")
async def test_a_rebalance_goes_on_where_a_killed_coordinator_left_it(cluster: Cluster) -> None:
    await cluster.create("t", 12)
    members = [Member(cluster, "g", name, ["t"]) for name in ("one", "two", "three")]
    await members[0].join()
    await settled(members[:1])
    await members[1].join()
    await members[2].join()
    told: dict[tuple[str, int], int] = {key: given.epoch for key, given in members[0].owned.items()}
    for step in range(6):
        await members[step % 3].beat()
        if step == 2:
            await cluster.stop(await coordinator_of(cluster, "g"), graceful=False)
    await settled(members)
    owned = [key for member in members for key in member.owned]
    assert sorted(owned) == [("t", p) for p in range(12)], "each partition has one owner"
    assert [len(member.owned) for member in members] == [4, 4, 4]
    kept = [key for key, given in members[0].owned.items() if given.epoch == told[key]]
    assert len(kept) == 4, "what need not move has not moved"
    for member in members[1:]:
        assert all(given.epoch > told[key] for key, given in member.owned.items())


@in_cluster("a:1", "b:1")
async def test_a_takeover_alone_moves_nothing(cluster: Cluster) -> None:
    await cluster.create("t", 6)
    members = [Member(cluster, "g", name, ["t"]) for name in ("one", "two")]
    for member in members:
        await member.join()
    await settled(members)
    before = [dict(member.owned) for member in members]
    await cluster.stop(await coordinator_of(cluster, "g"), graceful=False)
    await settled(members, quiet_s=15)
    assert [member.owned for member in members] == before


@in_cluster("a:1", "b:1")
async def test_a_zombie_coordinator_answers_no_request(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, *[b"x"] * 10)
    group = Outsider(cluster, "g")
    assert await group.commit(("t", 0, 3)) == [""]
    zombie = await coordinator_of(cluster, "g")
    other = next(address for address in cluster.brokers if address != zombie)
    bundle = bundle_of(cluster, "g")
    epoch, counter = group.tokens["t", 0]
    cluster.views[zombie].pause()
    asked = cluster.line(zombie)
    fetching = fetch_committed(asked, "g")
    stale = asyncio.ensure_future(asked.commit_offsets(commit_of("g", ("t", 0, 4), epoch=epoch, counter=counter + 1)))  # type: ignore[arg-type, var-annotated]
    refused = asyncio.ensure_future(asked.commit_offsets(commit_of("g", ("t", 0, 9), epoch=epoch + 7, counter=9)))  # type: ignore[arg-type, var-annotated]
    listing = asyncio.ensure_future(asked.list_groups(pb.ListGroupsRequest(partition=partition_of("g", 16))))  # type: ignore[arg-type, var-annotated]
    cluster.brokers[other].ownership.report_lost(cluster.brokers[zombie].broker_id, False)
    await until(lambda: bundle in cluster.brokers[other].ownership.terms.opened, 10)
    late = commit_of("g", ("t", 0, 5), epoch=epoch, counter=counter + 2)
    answer = await _at(cluster, other, lambda line: line.commit_offsets(late))
    assert [result.error.code for result in answer.results] == [""]
    await asyncio.sleep(1)
    assert not any(task.done() for task in (fetching, stale, refused, listing))
    cluster.views[zombie].resume()
    for task in (fetching, stale, refused, listing):
        with pytest.raises(NotOwner) as error:
            await task
        assert error.value.owner == other
    assert await committed_offset(cluster, "g", "t", 0) == 5


async def _at(cluster: Cluster, address: str, call):  # type: ignore[no-untyped-def]
    """At this broker only."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await call(cluster.line(address))
            except RetriableError:
                await asyncio.sleep(0.05)


@in_cluster("a:1", "b:1")
async def test_a_delayed_commit_is_not_applied_by_a_later_coordinator_either(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, *[b"x"] * 10)
    member = Member(cluster, "g", "m", ["t"])
    await member.join()
    await settled([member])
    epoch = member.owned["t", 0].epoch
    assert await member.commit("t", 0, 4) == ""
    assert await member.commit("t", 0, 8) == ""
    await cluster.stop(await coordinator_of(cluster, "g"), graceful=False)
    assert await commit(cluster, commit_of("g", ("t", 0, 4), member="m", epoch=epoch, counter=1)) == [""]
    assert await committed_offset(cluster, "g", "t", 0) == 8
    reset = pb.ResetOffsetsRequest(group="g", resets=[pb.OffsetReset(topic="t", partition=0, offset=2)])
    assert [r.error.code for r in (await ask(cluster, lambda line: line.reset_offsets(reset))).results] == [""]
    await cluster.start("c:1")
    await cluster.stop(await coordinator_of(cluster, "g"), graceful=False)
    assert await commit(cluster, commit_of("g", ("t", 0, 9), member="m", epoch=epoch, counter=3)) == [
        StaleAssignment.code
    ]
    assert await committed_offset(cluster, "g", "t", 0) == 2
    await settled([member])
    assert member.owned["t", 0].epoch > epoch
    assert await member.commit("t", 0, 9) == ""


@in_cluster("a:1", "b:1")
async def test_a_graceful_hand_over_releases_held_heartbeats_and_costs_one_redirect(cluster: Cluster) -> None:
    await cluster.create("t", 4)
    member = Member(cluster, "g", "m", ["t"])
    await member.join()
    await settled([member])
    before = dict(member.owned)
    leaving = await coordinator_of(cluster, "g")
    other = next(address for address in cluster.brokers if address != leaving)
    request = pb.GroupHeartbeatRequest(
        group="g", member_id="m", owned=member.owned.values(), max_wait_ms=25_000, seen_epoch=member.epoch
    )
    held = asyncio.ensure_future(cluster.line(leaving).group_heartbeat(request))  # type: ignore[arg-type, var-annotated]
    await asyncio.sleep(0.5)
    begun = asyncio.get_running_loop().time()
    await cluster.stop(leaving)
    with pytest.raises(NotOwner) as error:
        await held
    assert error.value.owner == other
    assert asyncio.get_running_loop().time() - begun < 2
    assert not await member.beat()
    assert member.owned == before


@in_cluster("a:1")
async def test_no_member_and_no_reader_gets_a_state_that_is_not_durable(cluster: Cluster) -> None:
    """Neither the member that caused a change nor the one whose held heartbeat it wakes, nor who
    only reads.
    """
    await cluster.create("t", 2)
    one = Member(cluster, "g", "one", ["t"])
    await one.join()
    await settled([one])
    view = cluster.views["a:1"]
    held = asyncio.create_task(one.beat(3000))
    await asyncio.sleep(0.1)
    view.pause()
    two = Member(cluster, "g", "two", ["t"])
    joining = asyncio.create_task(two.join())
    reading = asyncio.create_task(committed_offset(cluster, "g", "t", 0))
    await asyncio.sleep(1)
    assert not any(task.done() for task in (held, joining, reading))
    assert len(one.owned) == 2
    view.resume()
    await asyncio.gather(held, joining, reading)
    await settled([one, two])
    assert (len(one.owned), len(two.owned)) == (1, 1)


@in_cluster("a:1", "b:1")
async def test_held_heartbeats_end_with_the_process(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    member = Member(cluster, "g", "m", ["t"])
    await member.join()
    await settled([member])
    killed = await coordinator_of(cluster, "g")
    broker = cluster.brokers[killed]
    held = asyncio.create_task(member.beat(25_000))
    await asyncio.sleep(0.5)
    await cluster.stop(killed, graceful=False)
    assert not await held, "answered by the next coordinator"
    assert not [task for task in asyncio.all_tasks() if broker.broker_id in task.get_name()]


@in_cluster("a:1")
async def test_what_is_damaged_refuses_by_name_and_the_other_partitions_go_on(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, b"x")
    names = [f"g{i}" for i in range(40)]
    for name in names:
        assert await Outsider(cluster, name).commit(("t", 0, 1)) == [""]
    victim = partition_of("g7", 16)
    bundle = bundle_of(cluster, "g7")
    topic_id = cluster.brokers["a:1"].metadata.catalog.topics_by_name[keys.OFFSETS_TOPIC].id
    await cluster.stop("a:1", graceful=False)
    key, good = await _damage_a_batch(cluster, bundle, topic_id, victim)
    await cluster.start("b:1")
    await cluster.settled()
    for name in names:
        if partition_of(name, 16) == victim:
            with pytest.raises(DataDamaged) as error:
                await committed_offset(cluster, name, "t", 0)
            assert error.value.object_key == key
        else:
            assert await committed_offset(cluster, name, "t", 0) == 1
    await cluster.store.put(key, good)
    await asyncio.sleep(6)
    assert await committed_offset(cluster, "g7", "t", 0) == 1


async def _damage_a_batch(cluster: Cluster, bundle: int, topic_id: int, partition: int) -> tuple[str, bytes]:
    """Flip a byte of the first batch of a partition; the object's key, and what it was."""
    slot = 1
    while True:
        index = (await read_index(cluster.store, bundle, slot)).index
        for entry in index.batches:
            if (entry.topic_id, entry.partition) == (topic_id, partition):
                key = keys.segment(bundle, slot)
                good = await cluster.store.get(key)
                bad = bytearray(good)
                bad[entry.position + entry.length // 2] ^= 1
                await cluster.store.put(key, bytes(bad))
                return key, good
        slot += 1


class GatedStore(StoreWrapper):
    """Data of segments can be read only while the gate is open; their indexes always."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self.gate.wait()
        return await super().get_range(key, start, length)


@virtual
async def test_while_groups_are_loaded_callers_hear_when_to_come_back() -> None:
    store = GatedStore(MemoryStore("", virtual_sources(1000)))
    async with cluster_of("a:1", "b:1", store=store) as cluster:
        await cluster.create("t", 1)
        await cluster.produce("t", 0, b"x")
        assert await Outsider(cluster, "g").commit(("t", 0, 1)) == [""]
        dying = await coordinator_of(cluster, "g")
        other = next(address for address in cluster.brokers if address != dying)
        bundle = bundle_of(cluster, "g")
        store.gate.clear()
        await cluster.stop(dying, graceful=False)
        await until(lambda: bundle in cluster.brokers[other].ownership.terms.opened)
        for _ in range(2):
            with pytest.raises(Unavailable) as error:
                await fetch_committed(cluster.line(other), "g")
            assert error.value.retry_after_ms
        store.gate.set()
        assert await committed_offset(cluster, "g", "t", 0) == 1


@in_cluster("a:1", produce_memory_bytes_max=1024 * 1024)
async def test_a_broker_without_room_refuses_new_commits_and_loses_none_that_it_took(cluster: Cluster) -> None:
    await cluster.create("t", 4)
    await cluster.produce("t", 0, *[b"x"] * 10)
    groups = [Outsider(cluster, f"g{i}") for i in range(8)]
    assert [await group.commit(("t", 0, 1)) for group in groups] == [[""]] * 8
    cluster.views["a:1"].pause()
    sizes = [100_000] * 12 + [10_000] * 30 + [100] * 60
    filling = [asyncio.create_task(cluster.produce("t", i % 4, b"x" * size)) for i, size in enumerate(sizes)]
    await asyncio.sleep(2)
    taken = [asyncio.create_task(group.commit(("t", 0, 2))) for group in groups]
    await asyncio.sleep(0.3)
    line = cluster.line("a:1")
    refusals = []
    for group in groups:
        epoch, counter = group.tokens["t", 0]
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                try:
                    await line.commit_offsets(commit_of(group.group, ("t", 0, 3), epoch=epoch, counter=counter + 1))
                except LedgerMQError as refused:
                    refusals.append(refused.code)
    assert refusals == ["RESOURCE_EXHAUSTED"] * 8
    cluster.views["a:1"].resume()
    assert await asyncio.gather(*taken) == [[""]] * 8
    await asyncio.gather(*filling)
    found = [(await committed(cluster, group.group, ("t", 0)))[0].offset for group in groups]
    assert found == [2] * 8

"""Check groups through a broker's service: commits, holders of partitions, refusals; in virtual
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ledgermq.errors import (
    InvalidGroupName,
    InvalidRequest,
    InvalidTopicName,
    PublishNotAccepted,
    StaticIdInUse,
    UnknownGroup,
    UnknownMember,
    UnknownPartition,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_offsets.limits import METADATA_BYTES_MAX, GroupLimits
from tests.broker.cluster import Cluster, cluster_of, frame_of, in_cluster
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
from tests.stores.one_put import OnePut
from tests.virtual_time import virtual, virtual_sources


@in_cluster("a:1", "b:1")
async def test_what_is_committed_is_told_by_any_coordinator_at_any_broker(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await cluster.produce("t", 0, b"a", b"b", b"c")
    assert await committed_offset(cluster, "g", "t", 0) is None
    group = Outsider(cluster, "g")
    assert await group.commit(("t", 0, 2)) == [""]
    assert await group.commit(("t", 0, 3)) == [""]
    assert await Outsider(cluster, "other").commit(("t", 0, 1)) == [""]
    assert [await committed_offset(cluster, group, "t", 0) for group in ("g", "other", "none")] == [3, 1, None]
    listed = [
        await ask(cluster, lambda line, p=p: line.list_groups(pb.ListGroupsRequest(partition=p))) for p in range(16)
    ]  # type: ignore[misc]
    assert {answer.partitions for answer in listed} == {16}
    assert sorted(info.group for answer in listed for info in answer.groups) == ["g", "other"]
    described = await ask(cluster, lambda line: line.describe_group(pb.DescribeGroupRequest(group="g")))
    assert described.coordinator == await coordinator_of(cluster, "g")
    assert [part.offset for part in described.group.committed] == [3]


@in_cluster("a:1", "b:1")
async def test_the_first_commit_makes_the_topic_of_offsets_once(cluster: Cluster) -> None:
    lines = [cluster.line(address) for address in cluster.brokers]
    assert (await lines[0].list_groups(pb.ListGroupsRequest())).partitions == 0, "who only looks makes nothing"
    with pytest.raises(UnknownGroup):
        await lines[1].describe_group(pb.DescribeGroupRequest(group="g"))
    with pytest.raises(UnknownGroup):
        await lines[0].delete_group(pb.DeleteGroupRequest(group="g"))
    await asyncio.gather(*(committed(cluster, f"g{i}", ("t", 0)) for i in range(20)))
    catalogs = [broker.metadata.catalog for broker in cluster.brokers.values()]
    topics = [catalog.topics_by_name[keys.OFFSETS_TOPIC] for catalog in catalogs]
    assert topics[0] == topics[1]
    assert (topics[0].partitions, set(topics[0].bundles)) == (16, {1, 2}), (
        "spread over all bundles but that of metadata"
    )


@in_cluster("a:1")
async def test_users_leave_the_topic_of_offsets_alone(cluster: Cluster) -> None:
    line = cluster.line("a:1")
    with pytest.raises(InvalidTopicName):
        await line.create_topic(pb.CreateTopicRequest(name=keys.OFFSETS_TOPIC, partitions=3))
    assert keys.OFFSETS_TOPIC not in cluster.brokers["a:1"].metadata.catalog.topics_by_name
    await cluster.create("t", 1)
    await cluster.produce("t", 0, b"a")
    assert await Outsider(cluster, "g").commit(("t", 0, 1)) == [""]
    with pytest.raises(InvalidTopicName):
        await line.alter_topic(pb.AlterTopicRequest(name=keys.OFFSETS_TOPIC, partitions=20))
    with pytest.raises(InvalidTopicName):
        await line.delete_topic(pb.DeleteTopicRequest(name=keys.OFFSETS_TOPIC))
    result = (await line.produce_once(frame_of(keys.OFFSETS_TOPIC, 0, b"x"))).results[0]
    assert result.error.code == PublishNotAccepted.code
    described = await line.describe_topics(pb.DescribeTopicsRequest())
    assert [topic.name for topic in described.topics] == ["t"]


class SlowStore(OnePut):
    """A put takes fifty milliseconds, so that what comes meanwhile gathers; counts segments,
    however often each is tried (hedges).
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.segments: set[str] = set()

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if "/segments/" in key:
            self.segments.add(key)
        await asyncio.sleep(0.05)
        await super().put_if_absent(key, buffers)


@virtual
async def test_commits_ride_in_the_segments_of_data() -> None:
    """Rounds of produce with and without commits beside them: as many puts."""
    store = SlowStore(MemoryStore("", virtual_sources(1000)))
    async with cluster_of("a:1", store=store, flush_spacing_ms=100) as cluster:
        await cluster.create("t", 2)
        groups = [Outsider(cluster, f"g{i}") for i in range(16)]
        await cluster.produce("t", 0, b"x")
        assert [await group.commit(("t", 0, 0)) for group in groups] == [[""]] * 16
        without = await _rounds(cluster, store, [])
        assert await _rounds(cluster, store, groups) == without == 40, "two bundles, two puts a round"
        assert [await committed_offset(cluster, f"g{i}", "t", 0) for i in range(16)] == [1] * 16


async def _rounds(cluster: Cluster, store: SlowStore, groups: Sequence[Outsider]) -> int:
    before = len(store.segments)
    for _ in range(10):
        first = [asyncio.create_task(cluster.produce("t", p, b"x")) for p in range(2)]
        await asyncio.sleep(0.01)
        beside = [cluster.produce("t", p, b"y") for p in range(2)]
        await asyncio.gather(*first, *beside, *(group.commit(("t", 0, 1)) for group in groups))
    return len(store.segments) - before


@in_cluster("a:1")
async def test_commits_of_one_moment_share_a_batch(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, b"x")
    groups = [Outsider(cluster, f"g{i}") for i in range(300)]
    assert await asyncio.gather(*(group.commit(("t", 0, 0)) for group in groups)) == [[""]] * 300
    before = sum(owner.opened_slot() for owner in cluster.brokers["a:1"].ownership.terms.opened.values())
    assert await asyncio.gather(*(group.commit(("t", 0, 1)) for group in groups)) == [[""]] * 300
    segments = sum(owner.opened_slot() for owner in cluster.brokers["a:1"].ownership.terms.opened.values()) - before
    assert segments <= 4, "two bundles: the first commit of each goes at once, the others wait for it together"


@in_cluster("a:1", "b:1")
async def test_bad_input_gets_a_typed_error_and_changes_nothing(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await cluster.produce("t", 0, b"a", b"b")
    member = Member(cluster, "g", "m", ["t"])
    await member.join()
    await settled([member])
    epoch = member.owned["t", 0].epoch
    assert await member.commit("t", 0, 1) == ""
    assert await member.commit("t", 0, 3) == "OFFSET_OUT_OF_RANGE"
    assert await member.commit("t", 0, 0) == "COMMIT_GOES_BACK"
    assert await member.commit("t", 7, 0) != ""
    old = commit_of("g", ("t", 0, 2), member="m", epoch=epoch - 1, counter=99)
    assert await commit(cluster, old) == ["STALE_ASSIGNMENT"]
    large = commit_of("g", ("t", 0, 2), member="m", epoch=epoch, counter=99)
    large.commits[0].metadata = "é" * (METADATA_BYTES_MAX // 2 + 1)
    assert await commit(cluster, large) == ["INVALID_REQUEST"]
    for name in ("", ".".join("x" * 200 for _ in range(2)), "a/b", "a b", "ü", "a\n"):
        with pytest.raises(InvalidGroupName):
            await commit(cluster, commit_of(name, ("t", 0, 1)))
        with pytest.raises(InvalidGroupName):
            await ask(cluster, lambda line, name=name: line.describe_group(pb.DescribeGroupRequest(group=name)))  # type: ignore[misc]
    for name in (".", ".."):
        with pytest.raises(InvalidGroupName):
            await commit(cluster, commit_of(name, ("t", 0, 1)))
    with pytest.raises(UnknownMember):
        await commit(cluster, commit_of("g", ("t", 0, 2), member="nobody", epoch=epoch))
    with pytest.raises(InvalidRequest):
        await commit(cluster, commit_of("g", *[("t", 0, 1)] * (GroupLimits().commits_max + 1), member="m"))
    with pytest.raises(UnknownPartition):
        await ask(cluster, lambda line: line.list_groups(pb.ListGroupsRequest(partition=16)))
    assert await committed_offset(cluster, "g", "t", 0) == 1
    assert await member.commit("t", 0, 2) == ""


@in_cluster("a:1", "b:1")
async def test_a_repeated_or_delayed_commit_is_answered_and_not_applied(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, *[b"x"] * 10)
    outsider = Outsider(cluster, "g")
    assert await outsider.commit(("t", 0, 5)) == [""]
    assert await outsider.commit(("t", 0, 6)) == [""]
    epoch, counter = outsider.tokens["t", 0]
    for offset, of, code in ((6, counter, ""), (5, counter - 1, "STALE_ASSIGNMENT")):
        late = commit_of("g", ("t", 0, offset), epoch=epoch, counter=of)
        assert await commit(cluster, late) == [code], "repeated, or delayed: answered, not applied"
    of_another = commit_of("g", ("t", 0, 9), epoch=epoch, counter=counter)
    assert await commit(cluster, of_another) == ["STALE_ASSIGNMENT"]
    assert await committed_offset(cluster, "g", "t", 0) == 6


@in_cluster("a:1", "b:1")
async def test_of_two_members_with_one_static_id_the_second_is_refused(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    one = Member(cluster, "g", "one", ["t"], more={"instance_id": "i"})
    two = Member(cluster, "g", "two", ["t"], more={"instance_id": "i"})
    await one.join()
    with pytest.raises(StaticIdInUse):
        await two.join()
    await settled([one])
    assert len(one.owned) == 2


@in_cluster("a:1", "b:1")
async def test_a_member_that_stops_is_put_out_and_its_partitions_go_to_the_others(cluster: Cluster) -> None:
    await cluster.create("t", 4)
    one, two = Member(cluster, "g", "one", ["t"]), Member(cluster, "g", "two", ["t"])
    await one.join()
    await two.join()
    await settled([one, two])
    assert (len(one.owned), len(two.owned)) == (2, 2)
    lost = next(iter(two.owned))
    await settled([one], quiet_s=12.0)
    assert len(one.owned) == 4
    with pytest.raises(UnknownMember):
        await two.commit(*lost, 0)
    two.owned.clear()
    await two.join()
    await settled([one, two])
    assert len(one.owned) + len(two.owned) == 4


@virtual
async def test_members_get_the_partitions_of_the_brokers_in_their_rack() -> None:
    async with cluster_of() as cluster:
        racks = {"a:1": "east", "b:1": "west"}
        for address, rack in racks.items():
            cluster.settings = cluster.settings.model_copy(update={"rack": rack})
            await cluster.start(address)
        await cluster.settled()
        await cluster.create("t", 4)
        near = {partition: racks[await cluster.owner_of("t", partition)] for partition in range(4)}
        assert sorted(near.values()) == ["east", "east", "west", "west"]
        members = {rack: Member(cluster, "g", rack, ["t"], more={"rack": rack}) for rack in ("east", "west")}
        for member in members.values():
            await member.join()
            await settled(list(members.values())[: 1 + (member is members["west"])])
        for rack, member in members.items():
            assert {near[partition] for _, partition in member.owned} == {rack}
            assert len(member.owned) == 2


@in_cluster("a:1", "b:1")
async def test_a_held_heartbeat_is_answered_when_there_is_something_to_say(cluster: Cluster) -> None:
    await cluster.create("t", 4)
    loop = asyncio.get_running_loop()
    one, two = Member(cluster, "g", "one", ["t"]), Member(cluster, "g", "two", ["t"])
    await one.join()
    await settled([one])
    begun = loop.time()
    assert not await one.beat(3000)
    assert 3.0 <= loop.time() - begun < 3.5, "nothing to say: held to the end"
    begun = loop.time()
    held = asyncio.create_task(one.beat(20_000))
    await asyncio.sleep(1)
    await two.join()
    assert await held
    assert loop.time() - begun < 5
    assert len(one.owned) == 2
    again = [asyncio.create_task(one.beat(20_000)) for _ in range(2)]
    await asyncio.sleep(0.5)
    assert [task.done() for task in again] == [True, False], "a newer one releases the older"
    again[1].cancel()


@in_cluster("a:1", "b:1")
async def test_topics_that_grow_or_vanish_are_noticed_while_heartbeats_are_held(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await cluster.create("gone", 2)
    member = Member(cluster, "g", "m", ["t", "gone"])
    await member.join()
    await settled([member])
    assert len(member.owned) == 4
    held = asyncio.create_task(member.beat(25_000))
    await asyncio.sleep(1)
    await cluster.line("b:1").alter_topic(pb.AlterTopicRequest(name="t", partitions=5))
    await held
    await settled([member])
    assert len(member.owned) == 7
    held = asyncio.create_task(member.beat(25_000))
    await asyncio.sleep(1)
    await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name="gone"))
    await held
    await settled([member])
    assert sorted(member.owned) == [("t", p) for p in range(5)]


@virtual
async def test_two_clusters_at_once_know_nothing_of_each_other() -> None:
    async with cluster_of("a:1", "b:1") as one, cluster_of("a:1", "b:1") as two:
        for cluster, offset in ((one, 1), (two, 2)):
            await cluster.create("t", 2)
            await cluster.produce("t", 0, b"a", b"b")
            assert await Outsider(cluster, "g").commit(("t", 0, offset)) == [""]
        assert [await committed_offset(cluster, "g", "t", 0) for cluster in (one, two)] == [1, 2]

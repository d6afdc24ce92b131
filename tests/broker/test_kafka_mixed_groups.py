"""Members with `group.protocol=consumer` (KIP-848) beside others: ours, classic ones, tools, rules, a takeover."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.errors import FilterConflict, GroupError, GroupNotEmpty
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import delete_groups_request as dg
from ledgermq_broker.kafka.wire.generated import describe_groups_request as de
from ledgermq_broker.kafka.wire.generated import list_groups_request as lg
from ledgermq_broker.kafka.wire.generated import offset_delete_request as od
from ledgermq_broker.kafka.wire.messages import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    OFFSET_DELETE,
)
from tests.broker.access import RULES, change
from tests.broker.groups import Member, ask, committed_offset, coordinator_of
from tests.broker.kafka_consumers import KafkaConsumer, settle
from tests.broker.kafka_members import KafkaMember
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster
from tests.broker.test_kafka_identity import proven


async def native(cluster: KafkaCluster, group: str, *topics: str) -> Member:
    member = Member(cluster, group, "native", topics or ("t",))
    await member.join()
    return member


@in_kafka_cluster("a:1")
async def test_our_members_and_theirs_share_one_group(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=4)
    for number in range(4):
        await cluster.produce("t", number, *[b"x"] * 50)
    ours, theirs = await native(cluster, "g"), KafkaConsumer(cluster, "g")
    assert len(ours.owned) == 4
    await theirs.enter()
    for _ in range(4):
        await ours.beat()
        assert await theirs.beat() == 0
    assert len(ours.owned) == len(theirs.owned) == 2
    assert sorted([number for _, number in ours.owned] + theirs.numbers) == [0, 1, 2, 3]
    [(_, mine), *_], theirs_one = sorted(ours.owned), theirs.numbers[0]
    assert await ours.commit("t", mine, 5) == ""
    assert await theirs.commit(("t", theirs_one, 6), ("t", mine, 9)) == [0, Code.STALE_MEMBER_EPOCH]
    assert await ours.commit("t", theirs_one, 9) == "STALE_ASSIGNMENT"
    assert await theirs.leave() == 0
    for _ in range(3):
        await ours.beat()
    assert len(ours.owned) == 4
    assert await committed_offset(cluster, "g", "t", theirs_one) == 6
    assert await ours.commit("t", theirs_one, 7) == ""
    await theirs.enter()
    await ours.leave()
    await settle(theirs)
    assert theirs.numbers == [0, 1, 2, 3]
    as_ours = KafkaConsumer(cluster, "g")
    ours = await native(cluster, "g")
    as_ours.id, as_ours.generation = "native", theirs.generation
    assert await as_ours.beat() == Code.INCONSISTENT_GROUP_PROTOCOL
    assert await as_ours.commit(("t", 0, 1)) == [Code.INCONSISTENT_GROUP_PROTOCOL]


@in_kafka_cluster("a:1")
async def test_classic_members_and_those_that_the_broker_assigns_are_refused_in_one_group(
    cluster: KafkaCluster,
) -> None:
    await cluster.create("t")
    consumer = KafkaConsumer(cluster, "g")
    await consumer.enter()
    classic = KafkaMember(cluster, "g")
    assert await classic.join() == Code.INCONSISTENT_GROUP_PROTOCOL
    assert await consumer.leave() == 0
    await classic.enter()
    assert await consumer.beat() == Code.INCONSISTENT_GROUP_PROTOCOL
    assert "group.protocol=classic" in consumer.message
    assert await classic.leave() == 0
    await consumer.enter()


@in_kafka_cluster("a:1")
async def test_a_filter_of_our_own_members_keeps_others_out(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    ours = Member(cluster, "g", "native", ("t",), more={"filter": "key = 'a'"})
    await ours.join()
    theirs = KafkaConsumer(cluster, "g")
    assert await theirs.beat() == Code.INCONSISTENT_GROUP_PROTOCOL
    assert "filter" in theirs.message
    await KafkaConsumer(cluster, "h").enter()
    with pytest.raises(FilterConflict):
        await Member(cluster, "h", "native", ("t",), more={"filter": "key = 'a'"}).join()


# Tools


@in_kafka_cluster("a:1")
async def test_tools_see_members_and_change_nothing_under_them(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=2)
    await cluster.create("u", partitions=1)
    member = KafkaConsumer(cluster, "g", rack_id="r1")
    await member.enter()
    await native(cluster, "ours")
    assert await member.commit(("t", 0, 3), ("u", 0, 4)) == [0, 0]
    line = cluster.connect("a:1")

    async def listed(**filters: Any) -> dict[str, tuple[str, str, str]]:
        answer = await line.call(LIST_GROUPS, 5, lg.ListGroupsRequest(**filters))
        return {one.group_id: (one.protocol_type, one.group_state, one.group_type) for one in answer.groups}

    assert (await listed())["g"] == ("consumer", "Reconciling", "consumer")
    await settle(member)
    assert (await listed(types_filter=["consumer"], states_filter=["stable"])) == {
        "g": ("consumer", "Stable", "consumer")
    }
    shown = await member.shown()
    assert (shown.group_state, shown.assignor_name, shown.error_code) == ("Stable", "uniform", 0)
    assert shown.group_epoch == shown.assignment_epoch == shown.members[0].member_epoch == member.generation
    [one] = shown.members
    assert (one.member_id, one.rack_id, one.instance_id, one.client_id) == (member.id, "r1", None, "test")
    assert (one.client_host, one.subscribed_topic_names, one.member_type) == ("/10.0.0.1", ["t"], 1)
    for given in (one.assignment, one.target_assignment):
        [topic] = given.topic_partitions
        assert (topic.topic_name, sorted(topic.partitions)) == ("t", [0, 1])
        assert {(topic.topic_id, number) for number in topic.partitions} == member.owned
    [old] = (await line.call(DESCRIBE_GROUPS, 5, de.DescribeGroupsRequest(groups=["g"]))).groups
    assert (old.group_state, len(old.members)) == ("Stable", 1)
    for group in ("none", "empty"):
        assert (await KafkaConsumer(cluster, group).shown()).error_code == Code.GROUP_ID_NOT_FOUND
    assert (await KafkaConsumer(cluster, "ours").shown()).members[0].client_host == ""

    reset = pb.ResetOffsetsRequest(group="g", resets=[pb.OffsetReset(topic="t")])
    with pytest.raises(GroupNotEmpty, match="stop it first"):
        await ask(cluster, lambda line: line.reset_offsets(reset))
    with pytest.raises(GroupNotEmpty):
        await ask(cluster, lambda line: line.delete_group(pb.DeleteGroupRequest(group="g")))
    deleted = await line.call(DELETE_GROUPS, 2, dg.DeleteGroupsRequest(groups_names=["g"]))
    assert deleted.results[0].error_code == Code.NON_EMPTY_GROUP

    def of_topic(name: str) -> od.OffsetDeleteRequestTopic:
        return od.OffsetDeleteRequestTopic(name, partitions=[od.OffsetDeleteRequestPartition(partition_index=0)])

    answer = await line.call(OFFSET_DELETE, 0, od.OffsetDeleteRequest("g", topics=[of_topic("t"), of_topic("u")]))
    codes = [topic.partitions[0].error_code for topic in answer.topics]
    assert (answer.error_code, codes) == (0, [Code.GROUP_SUBSCRIBED_TO_TOPIC, 0])
    assert await member.committed("u") == (-1, "", 0)
    assert await member.leave() == 0
    deleted = await line.call(DELETE_GROUPS, 2, dg.DeleteGroupsRequest(groups_names=["g"]))
    assert deleted.results[0].error_code == 0


# Takeover, rules


@in_kafka_cluster("a:1", "b:1", "c:1")
async def test_members_go_on_when_their_coordinator_dies(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=4)
    members = [KafkaConsumer(cluster, "g"), KafkaConsumer(cluster, "g", instance_id="static")]
    for member in members:
        await member.enter()
    await settle(*members)
    before = [set(member.owned) for member in members]
    assert await members[0].commit(("t", members[0].numbers[0], 3)) == [0]
    for _ in range(2):
        await cluster.stop(await coordinator_of(cluster, "g"), graceful=False)
        await settle(*members)
        assert [set(member.owned) for member in members] == before, "nothing moves"
        assert await members[0].commit(("t", members[0].numbers[0], 4)) == [0]
    shown = (await members[0].shown()).members
    assert {one.instance_id for one in shown} == {None, "static"}
    late = KafkaConsumer(cluster, "g")
    await late.enter()
    await settle(*members, late)
    assert sorted(number for member in (*members, late) for number in member.numbers) == [0, 1, 2, 3]
    assert len(late.owned) == 1


@in_kafka_cluster("a:1", "b:1")
async def test_a_partition_is_let_go_across_a_takeover(cluster: KafkaCluster) -> None:
    """What was withdrawn is in the log: the successor gives it to no other member before it was let go."""
    await cluster.create("t", partitions=2)
    first, second = KafkaConsumer(cluster, "g"), KafkaConsumer(cluster, "g")
    await first.enter()
    await second.enter()
    assert await first.beat() == 0
    assert len(first.owned) == 1
    await cluster.stop(await coordinator_of(cluster, "g"), graceful=False)
    assert await second.beat() == 0
    assert second.numbers == []
    await settle(first, second)
    assert sorted(first.numbers + second.numbers) == [0, 1]


@in_kafka_cluster("a:1", **RULES)
async def test_rights_to_the_group_and_to_its_topics_are_two_codes(cluster: KafkaCluster) -> None:
    for name in ("mine", "theirs"):
        await cluster.brokers["a:1"].service.create_topic(pb.CreateTopicRequest(name=name, partitions=1))
    await change(cluster, grant=["allow user:ann consume mine*", "allow user:ann group g"])
    line = await proven(cluster, "ann")

    async def code(group: str, topics: list[str] | None, pattern: str | None = None) -> int:
        member = KafkaConsumer(cluster, group, topics, subscribed_topic_regex=pattern)
        member.client = line
        return await member.beat()

    assert await code("g", ["mine"]) == 0
    assert await code("g", ["mine", "theirs"]) == Code.TOPIC_AUTHORIZATION_FAILED
    assert await code("other", ["mine"]) == Code.GROUP_AUTHORIZATION_FAILED
    assert await code("g", None, "^mine.*") == 0
    assert await code("g", None, ".*") == Code.TOPIC_AUTHORIZATION_FAILED, "not of all topics may it see records"


@in_kafka_cluster("a:1")
async def test_a_native_call_cannot_pass_for_a_member_of_the_kafka_protocol(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    ours = await native(cluster, "g")
    forged = pb.GroupHeartbeatRequest(group="g", member_id="native", kafka=pb.KafkaMember(epoch=ours.epoch, owned=True))
    with pytest.raises(GroupError, match="LedgerMQ's own protocol"):
        await ask(cluster, lambda line: line.group_heartbeat(forged))
    before = dict(ours.owned)
    await ours.beat()
    assert ours.owned == before

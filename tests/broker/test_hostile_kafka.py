"""What a hostile client of the Kafka protocol sends to groups: to a cluster with rules, and beyond each bound."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import consumer_group_heartbeat_request as ch
from ledgermq_broker.kafka.wire.generated import delete_groups_request as dg
from ledgermq_broker.kafka.wire.generated import find_coordinator_request as fc
from ledgermq_broker.kafka.wire.generated import join_group_request as j
from ledgermq_broker.kafka.wire.generated import leave_group_request as le
from ledgermq_broker.kafka.wire.generated import list_groups_request as lg
from ledgermq_broker.kafka.wire.generated import metadata_request as m
from ledgermq_broker.kafka.wire.generated import produce_request as p
from ledgermq_broker.kafka.wire.messages import (
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_GROUPS,
    FIND_COORDINATOR,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    METADATA,
    OFFSET_COMMIT,
    PRODUCE,
)
from ledgermq_broker.kafka.wire.primitives import ELEMENTS_MAX
from tests.broker.access import RULES, change, token
from tests.broker.kafka_members import KafkaMember
from tests.broker.kafka_world import Ended, KafkaCluster, batch_of, in_kafka_cluster


@in_kafka_cluster("a:1", **RULES)
async def test_a_client_without_a_credential_does_nothing_to_a_group_of_others(cluster: KafkaCluster) -> None:
    await change(cluster, grant=["allow user:victim produce,consume,create *", "allow user:victim group *"])
    proof = (await token(cluster, "victim")).text
    await cluster.create("t", 1, proof)
    line = cluster.line("a:1", proof)
    subscription = pb.GroupSubscription(topics=["t"])
    joining = pb.GroupHeartbeatRequest(group="g", member_id="m", step=pb.JOIN, subscription=subscription)
    await line.group_heartbeat(joining)
    before = (await line.describe_group(pb.DescribeGroupRequest(group="g"))).group
    hostile = KafkaMember(cluster, "g")
    hostile.id = "m"
    attacks: list[tuple[Any, int, Any]] = [
        (FIND_COORDINATOR, 4, fc.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])),
        (JOIN_GROUP, 9, hostile.join_request()),
        (CONSUMER_GROUP_HEARTBEAT, 1, ch.ConsumerGroupHeartbeatRequest("g", "m", -1)),
        (LEAVE_GROUP, 5, le.LeaveGroupRequest("g", members=[le.MemberIdentity("m")])),
        (OFFSET_COMMIT, 9, hostile.commit_request([("t", 0, 7)])),
        (DELETE_GROUPS, 2, dg.DeleteGroupsRequest(groups_names=["g"])),
        (LIST_GROUPS, 4, lg.ListGroupsRequest()),
    ]
    for api, version, request in attacks:
        with pytest.raises(Ended):
            await cluster.connect("a:1").call(api, version, request)
    after = (await line.describe_group(pb.DescribeGroupRequest(group="g"))).group
    assert [(one.member_id, one.owned) for one in after.members] == [("m", before.members[0].owned)]
    assert (after.epoch, after.committed) == (before.epoch, before.committed)


@in_kafka_cluster("a:1")
async def test_names_that_a_member_states_are_bounded_as_its_metadata(cluster: KafkaCluster) -> None:
    """A thousand names of 16 KiB counted as nothing, in memory and in the log, a thousand times for each group."""
    member = KafkaMember(cluster, "g")
    request = member.join_request()
    request.protocols += [j.JoinGroupRequestProtocol(name=f"{n:016000}", metadata=b"") for n in range(900)]
    answer = await member.call(JOIN_GROUP, 9, request)
    assert answer.error_code == Code.GROUP_MAX_SIZE_REACHED
    assert await member.join() == Code.NONE


@in_kafka_cluster("a:1", group_members_max=3)
async def test_ids_that_no_member_joins_with_are_bounded_and_leave_the_group(cluster: KafkaCluster) -> None:
    codes = []
    for _ in range(5):
        flooding = KafkaMember(cluster, "g")
        codes.append((await flooding.call(JOIN_GROUP, 9, flooding.join_request())).error_code)
    assert codes == [Code.MEMBER_ID_REQUIRED] * 3 + [Code.GROUP_MAX_SIZE_REACHED] * 2


def many_batches(count: int) -> p.ProduceRequest:
    batch = batch_of(b"x")
    data = [p.PartitionProduceData(index=0, records=batch) for _ in range(count)]
    return p.ProduceRequest(acks=-1, timeout_ms=600_000, topic_data=[p.TopicProduceData("t", partition_data=data)])


@in_kafka_cluster("a:1")
async def test_a_request_of_many_batches_holds_up_no_one(cluster: KafkaCluster) -> None:
    """10,000 of them, 0.8 MB, stopped the broker for seven seconds, and 100,000 for minutes."""
    await cluster.create("t", 1)
    client = cluster.connect("a:1")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(others())
    answer = await client.call(PRODUCE, 9, many_batches(2_000))
    counting.cancel()
    parts = answer.responses[0].partition_responses
    assert [(one.error_code, one.base_offset) for one in parts] == [(0, offset) for offset in range(2_000)]
    assert turns > 2 * 2_000 // 64


@in_kafka_cluster("a:1")
async def test_more_batches_than_a_frame_takes_are_stored(cluster: KafkaCluster) -> None:
    """All of them were refused, in a frame of ours that may have 4,096."""
    await cluster.create("t", 1)
    answer = await cluster.connect("a:1").call(PRODUCE, 9, many_batches(4_100))
    parts = answer.responses[0].partition_responses
    assert [one.base_offset for one in parts] == list(range(4_100))


@in_kafka_cluster("a:1")
async def test_a_request_has_a_bounded_number_of_elements(cluster: KafkaCluster) -> None:
    wanted = [m.MetadataRequestTopic(name="x") for _ in range(ELEMENTS_MAX + 1)]
    client = cluster.connect("a:1")
    with pytest.raises(Ended):
        await client.call(METADATA, 12, m.MetadataRequest(topics=wanted))
    assert client.is_over

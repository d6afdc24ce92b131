"""Clients of the Kafka protocol delete records: bounds, leaders, holds, rules."""

from __future__ import annotations

from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.admin import records
from ledgermq_broker.kafka.handlers.asked import Asked
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import delete_records_request as dr
from ledgermq_broker.kafka.wire.messages import DELETE_RECORDS
from tests.broker.access import RULES, change, token
from tests.broker.kafka_world import KafkaClient, KafkaCluster, batch_of, in_kafka_cluster, records_of

EARLIEST = -2
HOUR_MS = 60 * 60 * 1000


def asking(*wanted: tuple[str, int, int]) -> dr.DeleteRecordsRequest:
    """Each with topic, partition and offset; a topic that comes again stands again in the request."""
    topics = [dr.DeleteRecordsTopic(name, [dr.DeleteRecordsPartition(number, at)]) for name, number, at in wanted]
    return dr.DeleteRecordsRequest(topics=topics, timeout_ms=30_000)


async def delete(
    client: KafkaClient, *wanted: tuple[str, int, int], version: int = 2
) -> dict[tuple[str, int], tuple[Code, int]]:
    answer = await client.call(DELETE_RECORDS, version, asking(*wanted))
    return _codes(answer)


def _codes(answer: Any) -> dict[tuple[str, int], tuple[Code, int]]:
    return {
        (topic.name, one.partition_index): (Code(one.error_code), one.low_watermark)
        for topic in answer.topics
        for one in topic.partitions
    }


async def filled(cluster: KafkaCluster, name: str, partitions: int = 1, **settings: str) -> None:
    """Create a topic with four records in each partition."""
    await cluster.create(name, partitions, **settings)
    for number in range(partitions):
        leader = await cluster.leader_client(name, number)
        made = await leader.produce(name, number, batch_of(b"0", b"1", b"2", b"3", key=b"k"))
        assert made.error_code == Code.NONE


@in_kafka_cluster("a:1")
async def test_a_log_begins_where_it_was_asked_to_and_never_goes_back(cluster: KafkaCluster) -> None:
    await filled(cluster, "t", 3)
    client = cluster.connect("a:1")
    for version in (0, 1, 2):
        assert await delete(client, ("t", 0, 2), version=version) == {("t", 0): (Code.NONE, 2)}
    assert await delete(client, ("t", 0, 1), ("t", 1, -1)) == {("t", 0): (Code.NONE, 2), ("t", 1): (Code.NONE, 4)}
    starts = [(await client.list_offset("t", number, EARLIEST)).offset for number in range(3)]
    assert starts == [2, 4, 0]
    assert records_of(await client.fetch("t", 0, 2)) == [(2, b"2"), (3, b"3")]
    assert (await client.fetch("t", 0, 1)).error_code == Code.OFFSET_OUT_OF_RANGE


@in_kafka_cluster("a:1", topic_delete_grace_ms=HOUR_MS)
async def test_what_cannot_be_deleted_says_why_for_each_partition(cluster: KafkaCluster) -> None:
    await filled(cluster, "t", 2)
    await filled(cluster, "held", legal_hold="true")
    await filled(cluster, "keyed", cleanup_policy="compact")
    await filled(cluster, "gone")
    await cluster.brokers["a:1"].service.delete_topic(pb.DeleteTopicRequest(name="gone"))
    client = cluster.connect("a:1")
    unknown, range_, policy = Code.UNKNOWN_TOPIC_OR_PARTITION, Code.OFFSET_OUT_OF_RANGE, Code.POLICY_VIOLATION
    wanted = {
        ("t", 0, 5): range_,
        ("t", 2, 1): unknown,
        ("t", -1, 1): unknown,
        ("held", 0, -1): policy,
        ("keyed", 0, -1): policy,
        ("gone", 0, -1): unknown,
        ("never", 0, 1): unknown,
        ("__metadata", 0, -1): unknown,
    }
    found = await delete(client, *wanted, ("t", 1, 3))
    assert found == {at[:2]: (code, -1) for at, code in wanted.items()} | {("t", 1): (Code.NONE, 3)}
    assert await delete(client, ("t", 0, -2)) == {("t", 0): (range_, -1)}
    assert await delete(client, ("t", 0, 1), ("t", 0, 2)) == {("t", 0): (Code.INVALID_REQUEST, -1)}
    for name in ("t", "held", "keyed"):
        assert (await client.list_offset(name, 0, EARLIEST)).offset == 0


@in_kafka_cluster("a:1", "b:1")
async def test_only_the_leader_deletes_and_others_send_the_client_to_it(cluster: KafkaCluster) -> None:
    await filled(cluster, "t", 2)
    for number in range(2):
        leader = await cluster.owner_of("t", number)
        other = cluster.connect("b:1" if leader == "a:1" else "a:1")
        assert await delete(other, ("t", number, 1)) == {("t", number): (Code.NOT_LEADER_OR_FOLLOWER, -1)}
        assert await delete(cluster.connect(leader), ("t", number, 1)) == {("t", number): (Code.NONE, 1)}


@in_kafka_cluster("a:1", **RULES)
async def test_rules_judge_who_may_delete_records(cluster: KafkaCluster) -> None:
    broker = cluster.brokers["a:1"]
    for name in ("mine", "seen", "theirs"):
        await broker.service.create_topic(pb.CreateTopicRequest(name=name))
    await change(cluster, grant=["allow user:ann delete mine", "allow user:ann consume,produce,alter seen"])
    admitted = await broker.door.admit("Bearer " + (await token(cluster, "ann")).text)
    request = asking(("mine", 0, -1), ("seen", 0, -1), ("theirs", 0, -1), ("never", 0, -1))
    found = _codes(await records.answers()[DELETE_RECORDS](Asked(admitted.api, request, 2)))
    denied = (Code.TOPIC_AUTHORIZATION_FAILED, -1)
    assert found == {("mine", 0): (Code.NONE, 0)} | {(name, 0): denied for name in ("seen", "theirs", "never")}

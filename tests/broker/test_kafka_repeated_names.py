"""A small request that names one thing many times costs no more than one that names it once."""

from __future__ import annotations

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import consumer_group_describe_request as cd
from ledgermq_broker.kafka.wire.generated import describe_groups_request as de
from ledgermq_broker.kafka.wire.generated import list_offsets_request as lo
from ledgermq_broker.kafka.wire.generated import offset_fetch_request as of
from ledgermq_broker.kafka.wire.messages import CONSUMER_GROUP_DESCRIBE, DESCRIBE_GROUPS, LIST_OFFSETS, OFFSET_FETCH
from tests.broker.kafka_consumers import KafkaConsumer
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster


@in_kafka_cluster("a:1")
async def test_a_group_that_is_named_many_times_is_shown_once(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=2)
    member = KafkaConsumer(cluster, "g")
    await member.enter()
    names = ["g"] * 1000
    shown = await member.call(CONSUMER_GROUP_DESCRIBE, 1, cd.ConsumerGroupDescribeRequest(names))
    assert [(one.group_id, len(one.members)) for one in shown.groups] == [("g", 1)]
    old = await member.call(DESCRIBE_GROUPS, 5, de.DescribeGroupsRequest(groups=names))
    assert [(one.group_id, len(one.members)) for one in old.groups] == [("g", 1)]

    everything = of.OffsetFetchRequestGroup(group_id="g", topics=None)
    assert await member.commit(("t", 0, 0)) == [0]
    [once] = (await member.call(OFFSET_FETCH, 8, of.OffsetFetchRequest(groups=[everything]))).groups
    assert (once.error_code, len(once.topics)) == (0, 1)
    twice = await member.call(OFFSET_FETCH, 8, of.OffsetFetchRequest(groups=[everything] * 2))
    assert [(one.error_code, one.topics) for one in twice.groups] == [(Code.INVALID_REQUEST, [])] * 2


@in_kafka_cluster("a:1")
async def test_a_partition_that_is_named_twice_is_not_searched(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=2)
    await cluster.produce("t", 1, b"a", b"b")
    client = await cluster.leader_client("t", 0)
    parts = [lo.ListOffsetsPartition(partition_index=n, timestamp=at) for n, at in ((0, -3), (1, -1), (0, -3), (0, -1))]
    request = lo.ListOffsetsRequest(replica_id=-1, topics=[lo.ListOffsetsTopic(name="t", partitions=parts)])
    [topic] = (await client.call(LIST_OFFSETS, 7, request)).topics
    refused = (0, Code.INVALID_REQUEST, -1)
    found = [(one.partition_index, one.error_code, one.offset) for one in topic.partitions]
    assert found == [refused, (1, 0, 2), refused, refused]

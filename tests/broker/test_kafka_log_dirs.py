"""Tools of the Kafka protocol read how many bytes are stored; in virtual time, byte by byte."""

from __future__ import annotations

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.log_dirs import DIRECTORY
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import describe_log_dirs_request as dl
from ledgermq_broker.kafka.wire.messages import DESCRIBE_LOG_DIRS
from tests.broker.access import RULES, change
from tests.broker.kafka_world import KafkaClient, KafkaCluster, batch_of, in_kafka_cluster
from tests.broker.test_kafka_identity import proven, topic

Sizes = dict[tuple[str, int], int]


async def sizes(client: KafkaClient, *topics: tuple[str, list[int]], version: int = 4) -> Sizes:
    """No topics: all."""
    wanted = [dl.DescribableLogDirTopic(name, partitions) for name, partitions in topics] or None
    answer = await client.call(DESCRIBE_LOG_DIRS, version, dl.DescribeLogDirsRequest(wanted))
    assert answer.error_code == Code.NONE
    [directory] = answer.results
    assert (directory.error_code, directory.log_dir, directory.total_bytes, directory.usable_bytes) == (
        Code.NONE,
        DIRECTORY,
        -1,
        -1,
    )
    found: Sizes = {}
    for one in directory.topics:
        for part in one.partitions:
            assert (part.offset_lag, part.is_future_key) == (0, False)
            assert (one.name, part.partition_index) not in found
            found[one.name, part.partition_index] = part.partition_size
    return found


@in_kafka_cluster("a:1", "b:1")
async def test_each_broker_says_what_its_partitions_store(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=4)
    await cluster.create("u", partitions=1)
    for partition in range(3):
        client = await cluster.leader_client("t", partition)
        for _ in range(partition):
            batch = batch_of(b"x" * 10_000)
            assert (await client.produce("t", partition, batch)).error_code == Code.NONE
    clients = [cluster.connect(address) for address in cluster.brokers]
    for version in (1, 2, 3, 4):
        parts = [await sizes(client, version=version) for client in clients]
        together = {place: size for part in parts for place, size in part.items()}
        assert len(together) == sum(map(len, parts)) == 5, "one broker leads each partition"
        assert together["t", 0] == together["t", 3] == together["u", 0] == 0
        assert 10_000 < together["t", 1] < 12_000
        assert 20_000 < together["t", 2] < 24_000
    for client, part in zip(clients, parts, strict=True):
        named = await sizes(client, ("t", [1, 2, 9]), ("never", [0]), ("__metadata", [0]), ("t", [0, 2]))
        assert named == {place: size for place, size in part.items() if place in {("t", 0), ("t", 1), ("t", 2)}}


@in_kafka_cluster("a:1")
async def test_deleted_records_count_no_longer(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    client = cluster.connect("a:1")
    for _ in range(4):
        await client.produce("t", 0, batch_of(b"x" * 10_000))
    before = (await sizes(client))["t", 0]
    request = pb.DeleteRecordsRequest(topic="t", partitions=[pb.RecordsToDelete(partition=0, offset=3)])
    await cluster.brokers["a:1"].service.delete_records(request)
    assert before / 5 < (await sizes(client))["t", 0] < before / 3
    request = pb.DeleteRecordsRequest(topic="t", partitions=[pb.RecordsToDelete(partition=0, end=True)])
    await cluster.brokers["a:1"].service.delete_records(request)
    assert await sizes(client) == {("t", 0): 0}


@in_kafka_cluster("a:1", **RULES)
async def test_topics_that_the_caller_may_not_see_are_left_out(cluster: KafkaCluster) -> None:
    await topic(cluster, "mine")
    await topic(cluster, "theirs")
    await change(cluster, grant=["allow user:ann describe mine"])
    ann = await proven(cluster, "ann")
    assert await sizes(ann) == await sizes(ann, ("mine", [0]), ("theirs", [0])) == {("mine", 0): 0}

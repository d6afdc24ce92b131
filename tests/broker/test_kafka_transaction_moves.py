"""A partition moves to another bundle while a Kafka client writes transactions to it."""

from __future__ import annotations

import asyncio

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.wire.errors import Code
from tests.broker.kafka_producer import KafkaProducer
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster
from tests.broker.test_kafka_transactions import shows


def bundle_now(cluster: KafkaCluster) -> int:
    broker = next(iter(cluster.brokers.values()))
    return int(broker.metadata.catalog.living("t").bundles[0])


async def move(cluster: KafkaCluster) -> None:
    """Move the partition; what keeps it goes in a moment, since a committed transaction is completed then."""
    bundle = 1 if bundle_now(cluster) != 1 else 2
    request = pb.MovePartitionRequest(topic="t", partition=0, bundle=bundle)
    async with asyncio.timeout(60):
        while True:
            try:
                await cluster.line(next(iter(cluster.brokers))).move_partition(request)
                break
            except LedgerMQError:
                await asyncio.sleep(0.2)
        while any(broker.metadata.catalog.living("t").bundles[0] != bundle for broker in cluster.brokers.values()):
            await asyncio.sleep(0.1)


@in_kafka_cluster("a:1", "b:1")
async def test_a_partition_moves_between_its_addition_and_its_first_batch(cluster: KafkaCluster) -> None:
    """The bundle of the first batch is counted, whichever the partition lay in when it was added."""
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    await producer.init()
    assert await producer.add(("t", 0)) == 0
    await move(cluster)
    assert await producer.send("t", 0, b"a") == 0
    assert await producer.end() == 0
    await producer.transaction({("t", 0): b"b"})
    await shows(cluster, "t", 0, b"a", b"b")


@in_kafka_cluster("a:1", "b:1")
async def test_behind_a_move_a_producer_begins_a_new_epoch(cluster: KafkaCluster) -> None:
    """The other bundle does not know how far the producer is."""
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    await producer.init()
    await producer.transaction({("t", 0): b"a"})
    await move(cluster)
    assert await producer.add(("t", 0)) == 0
    assert await producer.send("t", 0, b"b") == Code.UNKNOWN_PRODUCER_ID
    assert await producer.end(commit=False) == 0
    await producer.init(producer_id=producer.id, epoch=producer.epoch)
    assert producer.epoch == 1
    await producer.transaction({("t", 0): b"b"})
    await shows(cluster, "t", 0, b"a", b"b")

"""Messages whose time to live is over are finished without a delivery to members of share groups, in virtual time."""

from __future__ import annotations

import asyncio

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.shares.topics import TTL_AGE_S_MAX
from tests.broker.kafka_sharers import ACCEPT, RELEASE, Got
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster
from tests.broker.test_kafka_share_groups import EARLIEST, LOCK_S, sharer, shares, values


@in_kafka_cluster("a:1", "b:1", **EARLIEST)
async def test_expired_messages_are_finished_without_a_delivery(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    line = await (await sharer(cluster)).line()
    async with cluster.client() as client, client.producer() as producer:
        for number in range(6):
            await producer.send("t", b"%d" % number, partition=0, ttl=5 if number in (1, 2, 5) else None)
    assert values(await line.fetch(0, records=2)) == [b"0", b"1"], "not expired yet"
    assert await line.accept(Got(0, 0, b"", 0), word=RELEASE) == {0: 0}
    await asyncio.sleep(LOCK_S + 1)
    assert [(got.value, got.deliveries) for got in await line.fetch(wait_ms=100)] == [(b"0", 2), (b"3", 1), (b"4", 1)]
    assert await line.acknowledge({0: [(0, 0, [ACCEPT]), (3, 4, [ACCEPT])]}) == {0: 0}
    [info] = await shares(cluster)
    assert (info.start, info.end) == (6, 6)


async def sent_now(cluster: KafkaCluster, *written: bytes, partition: int = 0) -> None:
    """Produce messages with the time of now, from which their time to live counts."""
    async with cluster.client() as client, client.producer() as producer:
        for value in written:
            await producer.send("t", value, partition=partition)


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_time_to_live_that_a_topic_is_given_later_counts(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await sent_now(cluster, b"0", b"1")
    line = await (await sharer(cluster)).line()
    assert values(await line.fetch(0, records=1)) == [b"0"]
    await cluster.line("a:1").alter_topic(pb.AlterTopicRequest(name="t", set={"message.ttl.ms": "5000"}))
    await asyncio.sleep(TTL_AGE_S_MAX + 1)
    assert await line.fetch(wait_ms=100) == []
    assert await line.accept(Got(0, 0, b"", 0)) == {0: 0}, "what was delivered in time may be finished later"
    await sent_now(cluster, b"2")
    assert values(await line.fetch(wait_ms=100)) == [b"2"]
    [info] = await shares(cluster)
    assert (info.start, info.end) == (2, 3)

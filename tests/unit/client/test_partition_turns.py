"""Partitions share a broker that is slower than the producer: none waits until the others have
nothing left.
"""

from __future__ import annotations

import asyncio

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.unit.client.hostile import ADDRESS, HostileBroker
from tests.virtual_time import virtual, virtual_sources

PARTITIONS, BATCHES = 6, 30


class SlowBroker(HostileBroker):
    """Answers a frame a second; its topic has more partitions."""

    async def _answer(self) -> None:
        await asyncio.sleep(1)

    async def describe_topics(self, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        partitions = [pb.PartitionInfo(bundle=1, owner=ADDRESS)] * PARTITIONS
        return pb.DescribeTopicsResponse(topics=[pb.TopicInfo(name="t", topic_id=1, partitions=partitions)])


@virtual
async def test_partitions_take_turns_at_a_slow_broker() -> None:
    broker = SlowBroker()
    async with (
        ledgermq.Client(broker, [ADDRESS], ClientSettings(), virtual_sources(5)) as client,
        client.producer(request_bytes_max=1, batch_bytes_max=1, delivery_timeout_s=1000) as producer,
    ):
        for _ in range(BATCHES):
            for partition in range(PARTITIONS):
                producer.send("t", b"a batch of its own", partition=partition)
        await producer.flush()
    order = [batch.partition for frame in broker.produced for batch in frame.header.batches]
    assert len(order) == PARTITIONS * BATCHES
    half = order[: len(order) // 2]
    assert min(half.count(partition) for partition in range(PARTITIONS)) >= BATCHES // 3

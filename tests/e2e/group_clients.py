"""Helpers of tests of groups: fill topics, take messages, read committed offsets, drop a consumer
as a crash would.
"""

from __future__ import annotations

import asyncio

import ledgermq
from ledgermq.errors import RetriableError
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.broker.cluster import Cluster


async def fill(
    client: ledgermq.Client, topic: str, count: int, *, name: str = "", partition: int | None = None
) -> list[bytes]:
    """Records with different values; without a partition they go round."""
    values = [f"{name}{number}".encode() for number in range(count)]
    partitions = len((await client.describe_topic(topic)).partitions)
    async with client.producer() as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % partitions if partition is None else partition)
        await producer.flush()
    return values


async def take(consumer: ledgermq.GroupConsumer, count: int) -> list[bytes]:
    """The values of the next messages, at least so many."""
    values: list[bytes] = []
    async with asyncio.timeout(120):
        while len(values) < count:
            values += [message.value or b"" for message in await consumer.fetch(timeout=10)]
    return values


async def drop(consumer: ledgermq.GroupConsumer) -> None:
    """As if its process were killed: nothing is committed, no broker is notified."""
    consumer.closed = True
    consumer.member._moving = None  # its open transaction is not aborted
    await consumer.member.end()
    await consumer._reader.close()


async def committed(cluster: Cluster, group: str, topic: str) -> dict[int, int]:
    """As the coordinator tells it."""
    async with asyncio.timeout(60):
        while True:
            for address in list(cluster.brokers):
                try:
                    answer = await cluster.line(address).fetch_committed(pb.FetchCommittedRequest(group=group))
                    return {
                        each.partition: each.offset
                        for each in answer.partitions
                        if each.topic == topic and each.HasField("offset")
                    }
                except RetriableError:
                    await asyncio.sleep(0.05)


async def take_messages(consumer: ledgermq.GroupConsumer, count: int) -> list[ledgermq.GroupMessage]:
    messages: list[ledgermq.GroupMessage] = []
    while len(messages) < count:
        messages += await consumer.fetch(count - len(messages), timeout=30)
    return messages


async def coordinator_of(cluster: Cluster, group: str) -> str:
    async with asyncio.timeout(60):
        while True:
            for address in list(cluster.brokers):
                try:
                    answer = await cluster.line(address).describe_group(pb.DescribeGroupRequest(group=group))
                    return answer.coordinator or address
                except RetriableError:
                    await asyncio.sleep(0.05)

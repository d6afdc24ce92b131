"""The partition of a keyed record: it never changes because the partition's owner is down; what happens when
the topic grows. In virtual time.
"""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

import ledgermq
from ledgermq.client.settings.partitioner import partition_of_key
from ledgermq.errors import DeadlineExceeded, OutcomeUnknown
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.own_network import OwnNetwork
from tests.waiting import until
from tests.worlds.consumed import read_values

PARTITIONS = 6


def key_of(partition: int, partitions: int = PARTITIONS) -> bytes:
    return next(key for number in count() if partition_of_key(key := b"k%d" % number, partitions) == partition)


async def partitions_at(cluster: Cluster, address: str) -> set[int]:
    return {partition for partition in range(PARTITIONS) if await cluster.owner_of("t", partition) == address}


@in_cluster("a:1", "b:1")
async def test_a_keyed_record_waits_for_its_partition_while_the_owner_is_down(cluster: Cluster) -> None:
    """The owner lives, so no other broker takes over, but the client does not reach it."""
    own = OwnNetwork(cluster)
    async with own.client() as client, client.producer() as producer:
        await client.create_topic("t", PARTITIONS)
        down = await partitions_at(cluster, "a:1")
        assert 0 < len(down) < PARTITIONS
        own.cut("a:1")
        sent: dict[int, list[ledgermq.Delivery]] = {}
        for number in range(5):
            for partition in range(PARTITIONS):
                delivery = producer.send("t", b"%d" % number, key=key_of(partition))
                sent.setdefault(partition, []).append(delivery)
            await asyncio.sleep(10)
        for partition, deliveries in sent.items():
            assert all(delivery.done() is (partition not in down) for delivery in deliveries), partition
        own.heal()
        await until(lambda: all(delivery.done() for deliveries in sent.values() for delivery in deliveries))
        for partition, deliveries in sent.items():
            results = [await delivery for delivery in deliveries]
            assert [(result.partition, result.offset) for result in results] == [(partition, at) for at in range(5)]


@in_cluster("a:1", "b:1")
async def test_after_the_delivery_time_out_it_fails_and_is_nowhere(cluster: Cluster) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", PARTITIONS)
        down = await partitions_at(cluster, "a:1")
        producer = client.producer(delivery_timeout_s=5)
        own.cut("a:1")
        for partition in down:
            with pytest.raises((DeadlineExceeded, OutcomeUnknown)):
                await producer.send("t", b"lost", key=key_of(partition))
        own.heal()
        assert await read_values(client, "t") == {partition: [] for partition in range(PARTITIONS)}


@in_cluster("a:1", "b:1")
async def test_when_the_topic_grows_waiting_records_keep_their_partition_and_later_ones_go_by_the_new_number(
    cluster: Cluster,
) -> None:
    own = OwnNetwork(cluster)
    async with own.client(metadata_age_s_max=1) as client, client.producer() as producer:
        await client.create_topic("t", PARTITIONS)
        down = await partitions_at(cluster, "a:1")
        key = next(
            key
            for number in count()
            if partition_of_key(key := b"k%d" % number, PARTITIONS) in down
            and partition_of_key(key, 2 * PARTITIONS) >= PARTITIONS
        )
        own.cut("a:1")
        before = [producer.send("t", b"before", key=key) for _ in range(3)]
        await asyncio.sleep(5)
        await client.alter_topic("t", 2 * PARTITIONS)
        await asyncio.sleep(5)
        after = producer.send("t", b"after", key=key)
        own.heal()
        assert {(await delivery).partition for delivery in before} == {partition_of_key(key, PARTITIONS)}
        assert (await after).partition == partition_of_key(key, 2 * PARTITIONS)

"""How a client keeps each partition on a stream from its owner."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.cluster import cluster_of
from tests.virtual_time import virtual


@pytest.mark.parametrize("turns", range(6))
@virtual
async def test_a_partition_is_read_although_its_stream_ended_before_its_first_step(turns: int) -> None:
    """Two partitions share a stream. It is ended because the second one is paused, at each turn of the event
    loop from its creation on.
    """
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("t", 2)
        async with client.producer() as producer:
            await asyncio.gather(*[producer.send("t", b"v", partition=partition) for partition in range(2)])
        async with client.consumer("t", start="earliest") as consumer:
            await consumer.wait_ready()
            reader = consumer._reader
            for reading in reader.readings:
                reader.pause(reading)
            await asyncio.sleep(1)
            for reading in reader.readings:
                reader.resume(reading)
            for _ in range(turns):
                await asyncio.sleep(0)
            reader.pause(reader.readings[1])
            assert [message.partition for message in await consumer.fetch(timeout=20)] == [0]

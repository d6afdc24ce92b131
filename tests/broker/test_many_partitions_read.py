"""A stream of many partitions looks at those with news, and now and then at the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.errors import UnknownTopic
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.paths.fetching.fetch_path import LOOK_AT_ALL_S
from tests.broker.cluster import cluster_of
from tests.virtual_time import virtual

PARTITIONS = 100


@virtual
async def test_a_record_of_one_partition_costs_no_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    plain = BundleOwner.fetch

    async def fetch(self: BundleOwner, topic: Any, partition: int, *given: Any, **named: Any) -> Any:
        if topic.name == "t":
            looks.append(partition)
        return await plain(self, topic, partition, *given, **named)

    monkeypatch.setattr(BundleOwner, "fetch", fetch)
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("t", PARTITIONS)
        async with client.producer() as producer, client.consumer("t", start="latest") as consumer:
            await producer.send("t", b"first", partition=0)
            await consumer.wait_ready()
            await asyncio.sleep(2 * LOOK_AT_ALL_S)
            await producer.send("t", b"second", partition=1)  # the stream has not looked for long, and looks at all
            assert [each.value for each in await consumer.fetch(timeout=10)] == [b"second"]
            await asyncio.sleep(0.1)
            looks.clear()
            for number in range(5):
                await producer.send("t", b"%d" % number, partition=number)
                assert [each.value for each in await consumer.fetch(timeout=10)] == [b"%d" % number]
            assert len(looks) <= 15
            assert set(looks) == set(range(5))


@virtual
async def test_a_deleted_topic_is_noticed_while_another_one_has_news() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        for name in ("busy", "gone"):
            await client.create_topic(name, 1)
        async with client.producer() as producer, client.consumer(["busy", "gone"]) as consumer:
            await producer.send("gone", b"v")
            assert len(await consumer.fetch(timeout=10)) == 1
            await client.delete_topic("gone")

            async def read_on() -> None:
                for _ in range(200):
                    await producer.send("busy", b"v")
                    await consumer.fetch(timeout=0.1)
                    await asyncio.sleep(0.1)

            with pytest.raises(UnknownTopic):
                await read_on()

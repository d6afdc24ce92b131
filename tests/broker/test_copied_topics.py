"""Brokers on a copy that has some of the topics of a cut."""

from __future__ import annotations

import pytest

from ledgermq import errors
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.virtual_time import virtual_sources
from tests.waiting import until
from tests.worlds.restoring import restore_into


@in_cluster("a:1", "b:1")
async def test_groups_and_names_of_topics_that_were_left_out_are_free(cluster: Cluster) -> None:
    async with cluster.client() as client:
        for name in ("kept", "gone"):
            await client.create_topic(name, 2)
            async with client.producer() as producer:
                for number in range(4):
                    await producer.send(name, b"%d" % number, partition=number % 2)
            async with client.consumer(name, group="g", commit="manual") as consumer:
                await consumer.commit([await anext(consumer) for _ in range(4)])
        await client.cuts.take("c")
        target = MemoryStore("new", virtual_sources(71))
        await restore_into(cluster.store, "c", target, topics="kept")
    async with cluster_of("c:1", store=target) as other, other.client() as client:
        assert [topic.name for topic in await client.list_topics()] == ["kept"]
        with pytest.raises((errors.UnknownTopic, errors.TopicBeingDeleted)):
            await client.describe_topic("gone")

        async def only_kept() -> bool:
            return {place[0] for place in (await client.groups.describe("g")).committed} == {"kept"}

        await until(only_kept, 600)
        assert await other.read_all("kept", 0) == [b"0", b"2"]
        async with client.consumer("kept", group="g", commit="manual") as consumer, client.producer() as producer:
            await producer.send("kept", b"next", partition=1)
            assert (await anext(consumer)).value == b"next"

        async def is_made() -> bool:
            try:
                await client.create_topic("gone", 1)
            except errors.TopicBeingDeleted:
                return False
            return True

        await until(is_made, 8000, every_s=60)
        await other.produce("gone", 0, b"another topic")
        assert await other.read_all("gone", 0) == [b"another topic"]

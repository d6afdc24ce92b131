"""Topics that were deleted and come back: what stays, for how long, and who may not touch it."""

from __future__ import annotations

import asyncio

import pytest

import ledgermq
from ledgermq.errors import InvalidTopicName, LegalHold, TopicBeingDeleted, TopicExists, Unavailable, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.cluster import heartbeat
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.topics.facts import is_held
from tests.broker.cluster import Cluster, in_cluster
from tests.waiting import until

HOUR_MS = 3600 * 1000
GRACE = {"topic.delete.grace.ms": HOUR_MS}


async def values_of(client: ledgermq.Client, topic: str) -> list[bytes | None]:
    async with client.consumer(topic, start="earliest") as consumer:
        found = await consumer.fetch(100, timeout=5)
        return [message.value for message in found]


async def send(client: ledgermq.Client, topic: str, *values: bytes) -> None:
    async with client.producer() as producer:
        for value in values:
            await producer.send(topic, value)


@in_cluster("a:1", "b:1")
async def test_a_deleted_topic_comes_back_with_records_offsets_and_settings(cluster: Cluster) -> None:
    async with cluster.client() as client:
        made = await client.create_topic("t", 2, GRACE)
        await send(client, "t", b"1", b"2", b"3")
        async with client.consumer("t", group="g", commit="manual", start="earliest") as member:
            taken = await member.fetch(timeout=10)
            await member.commit(taken)
        committed = {at: each.stored.offset for at, each in (await client.groups.describe("g")).committed.items()}
        until_ = await client.delete_topic("t")
        assert until_ is not None
        with pytest.raises(UnknownTopic, match="`ledgermq topic undelete t` brings it back"):
            await client.describe_topic("t")
        with pytest.raises(UnknownTopic):
            await send(client, "t", b"4")
        assert await client.list_topics() == []
        (kept,) = await client.list_topics(deleted=True)
        assert (kept.name, kept.topic_id, kept.kept_until_ms - kept.deleted_ms) == ("t", made.topic_id, HOUR_MS)
        back = await client.undelete_topic("t")
        assert (back.topic_id, dict(back.settings)) == (made.topic_id, dict(made.settings))
        assert await client.list_topics(deleted=True) == []
        assert sorted(filter(None, await values_of(client, "t"))) == [b"1", b"2", b"3"]
        again = {at: each.stored.offset for at, each in (await client.groups.describe("g")).committed.items()}
        assert again == committed
        await send(client, "t", b"4")


@in_cluster("a:1", "b:1")
async def test_the_name_stays_taken_until_the_topic_is_deleted_at_once(cluster: Cluster) -> None:
    async with cluster.client() as client:
        made = await client.create_topic("t", 1, GRACE)
        await client.delete_topic("t")
        with pytest.raises(TopicExists, match="`ledgermq topic delete --now t` frees the name"):
            await client.create_topic("t", 1)
        with pytest.raises(TopicExists):
            await client.create_topic("t", 1, if_not_exists=True)
        with pytest.raises(UnknownTopic):
            await client.alter_topic("t", 3)
        assert await client.delete_topic("t") is not None  # again: it stays as it is
        assert (await client.list_topics(deleted=True))[0].topic_id == made.topic_id
        assert await client.delete_topic("t", now=True) is None
        with pytest.raises(UnknownTopic):
            await client.undelete_topic("t")
        assert (await client.create_topic("t", 1, wait=True)).topic_id != made.topic_id


@in_cluster("a:1")
async def test_what_cannot_be_brought_back_is_refused(cluster: Cluster) -> None:
    async with cluster.client() as client:
        with pytest.raises(UnknownTopic):
            await client.undelete_topic("never")
        with pytest.raises(InvalidTopicName):
            await client.undelete_topic("__metadata")
        living = await client.create_topic("t", 1, GRACE)
        assert (await client.undelete_topic("t")).topic_id == living.topic_id  # a repetition finds it living
        await client.alter_topic("t", settings={"legal.hold": True})
        with pytest.raises(LegalHold):
            await client.delete_topic("t")


@in_cluster("a:1", "b:1")
async def test_the_grace_ends_by_both_clocks_and_frees_the_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1, {"topic.delete.grace.ms": 60_000})
        await send(client, "t", b"1")
        await client.delete_topic("t")
        await asyncio.sleep(50)
        assert len(await client.list_topics(deleted=True)) == 1
        store_time_ms = cluster.store.store_time_ms

        async def behind() -> int:
            return await store_time_ms() - HOUR_MS

        with monkeypatch.context() as patch:
            for view in cluster.views.values():
                patch.setattr(view, "store_time_ms", behind)
            await asyncio.sleep(60)  # this machine's clock alone says that the grace is over
            assert len(await client.list_topics(deleted=True)) == 1
        await until(lambda: "t" not in cluster.brokers["a:1"].metadata.catalog.topics_by_name, 300)
        with pytest.raises(UnknownTopic, match="does not exist"):
            await client.undelete_topic("t")
        await client.create_topic("t", 1)


@in_cluster("a:1", "b:1", "c:1")
async def test_a_controller_with_another_grace_keeps_what_was_promised(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1, GRACE)
        await send(client, "t", b"1")
        await client.delete_topic("t")
        controller = (await client.describe_cluster()).controller
        await cluster.stop(controller, graceful=False)
        rest = [address for address in cluster.brokers if address != controller]
    async with cluster.client() as client:
        await until(lambda: any(keys.METADATA_BUNDLE in cluster.brokers[at].ownership.opened for at in rest), 120)
        assert len(await client.list_topics(deleted=True)) == 1  # FAST has a grace of 0
        await client.undelete_topic("t")
        assert await values_of(client, "t") == [b"1"]


@in_cluster("a:1")
async def test_delete_and_undelete_at_one_moment_end_in_one_of_both(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1, GRACE)
        await send(client, "t", b"1")
        for _ in range(10):
            await asyncio.gather(client.delete_topic("t"), client.undelete_topic("t"), client.delete_topic("t"))
        await client.undelete_topic("t")
        assert await values_of(client, "t") == [b"1"]
        done = await asyncio.gather(
            client.delete_topic("t", now=True), client.undelete_topic("t"), return_exceptions=True
        )
        assert isinstance(done[1], UnknownTopic | TopicBeingDeleted) or done[1].name == "t"  # type: ignore[union-attr]
        with pytest.raises((UnknownTopic, TopicBeingDeleted)):
            await client.describe_topic("t")


@in_cluster("a:1")
async def test_the_answer_waits_until_each_bundle_holds_the_topic(cluster: Cluster) -> None:
    async with cluster.client() as client:
        made = await client.create_topic("t", 2, GRACE)
        bundles = {part.bundle for part in made.partitions}
        await client.delete_topic("t")
        for bundle in bundles:
            assert is_held(await newest_checkpoint(cluster.store, bundle), made.topic_id)
        await client.undelete_topic("t")
        for bundle in bundles:
            assert not is_held(await newest_checkpoint(cluster.store, bundle), made.topic_id)
        await client.delete_topic("t")
        checked = await check_root(cluster.store, await read_cluster(cluster.store), run_blocking=run_inline)
        assert not checked.problems


@in_cluster("a:1")
async def test_a_broker_that_would_serve_deleted_topics_forbids_a_grace(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client(timeout_s=5) as client:
        await client.create_topic("t", 1, GRACE)
        controller = cluster.brokers["a:1"].controller
        old = heartbeat.Heartbeat("old", "old:1", 1, "s", release="0.1.0")
        monkeypatch.setattr(controller, "_lacking", lambda feature: [old] if feature == heartbeat.UNDELETE else [])
        with pytest.raises(Unavailable, match="upgrade or stop it"):
            await client.delete_topic("t")
        assert len(await client.list_topics()) == 1
        await client.delete_topic("t", now=True)


@in_cluster("a:1")
async def test_the_wire_says_until_when(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1, GRACE)
        line = cluster.line("a:1")
        done = await line.delete_topic(pb.DeleteTopicRequest(name="t"))
        info = (await line.describe_topics(pb.DescribeTopicsRequest(topics=["t"], deleted=True))).topics[0]
        assert done.kept_until_ms == info.kept_until_ms == info.deleted_ms + HOUR_MS
        assert (await line.undelete_topic(pb.UndeleteTopicRequest(name="t"))).topic.deleted_ms == 0


@in_cluster("a:1", topic_delete_grace_ms=HOUR_MS)
async def test_a_grace_of_the_brokers_counts_where_a_topic_sets_none(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        await client.create_topic("u", 1, {"topic.delete.grace.ms": 0})
        assert await client.delete_topic("t") is not None
        assert await client.delete_topic("u") is None
        assert [topic.name for topic in await client.list_topics(deleted=True)] == ["t"]

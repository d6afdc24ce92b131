"""Topics that are created and deleted while answers are lost and other programs do the same: each call changes its
own topic only. In virtual time.
"""

from __future__ import annotations

from typing import Any

import pytest

import ledgermq
from ledgermq.errors import InvalidRequest, TopicExists, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.metadata.controller import Controller
from ledgermq_broker.metadata.topic_changes import CHANGES_KEPT
from ledgermq_broker.ports.in_process import InProcessConnector
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.lost_answers import lose_the_answer
from tests.virtual_time import virtual_sources
from tests.waiting import until


@pytest.mark.parametrize("address", ["a:1", "b:1"])
@in_cluster("a:1", "b:1")
async def test_a_creation_whose_answer_was_lost_succeeds_through_any_broker(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """One of the brokers passes the call on to the controller, and does so again after the loss by itself."""
    connector = InProcessConnector(cluster.network)
    async with ledgermq.Client(connector, [address], sources=virtual_sources(next(cluster.client_seeds))) as client:
        lose_the_answer(monkeypatch, Controller, "create_topic", stored=True)
        made = await client.create_topic("t", 2)
        assert made.topic_id == (await client.describe_topic("t")).topic_id
        with pytest.raises(TopicExists):
            await client.create_topic("t", 2)


@in_cluster("a:1", "b:1")
async def test_of_two_programs_that_create_an_equal_topic_one_succeeds(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other:

        async def other_creates() -> None:
            await other.create_topic("t", 2, {"retention.ms": 1000})

        lose_the_answer(monkeypatch, Controller, "create_topic", stored=False, then=other_creates)
        with pytest.raises(TopicExists):
            await one.create_topic("t", 2, {"retention.ms": 1000})
        lose_the_answer(monkeypatch, Controller, "create_topic", stored=False)
        assert (await one.create_topic("t", if_not_exists=True)).settings == {"retention.ms": "1000"}


@in_cluster("a:1", "b:1")
async def test_the_call_that_created_a_topic_is_known_after_a_change_of_the_topic(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other:

        async def other_alters() -> None:
            await other.alter_topic("t", partitions=3)

        lose_the_answer(monkeypatch, Controller, "create_topic", stored=True, then=other_alters)
        assert len((await one.create_topic("t", 2)).partitions) == 3


@in_cluster("a:1")
async def test_a_topic_without_a_nonce_is_the_caller_s_own_if_it_is_equal(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a controller of an earlier release stores it."""
    create = Controller.create_topic

    async def create_without(
        self: Controller, name: str, partitions: int, settings: dict[str, str], *_: Any, **__: Any
    ) -> Any:
        return await create(self, name, partitions, settings)

    monkeypatch.setattr(Controller, "create_topic", create_without)
    async with cluster.client() as client:
        lose_the_answer(monkeypatch, Controller, "create_topic", stored=True)
        assert len((await client.create_topic("t", 2)).partitions) == 2


@in_cluster("a:1", "b:1")
async def test_a_deletion_whose_answer_was_lost_deletes_no_later_topic_of_the_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other, other.producer() as producer:
        before = await one.create_topic("t", 1)

        async def other_creates_anew() -> None:
            await other.create_topic("t", 1)
            await producer.send("t", b"of another program")

        lose_the_answer(monkeypatch, Controller, "delete_topic", stored=True, then=other_creates_anew)
        await one.delete_topic("t")
        assert (await other.describe_topic("t")).topic_id != before.topic_id
        async with other.consumer("t", until_end=True) as consumer:
            assert [message.value async for message in consumer] == [b"of another program"]
        await one.delete_topic("t")
        await until(lambda: "t" not in cluster.brokers["a:1"].metadata.catalog.topics_by_name, 60)
        with pytest.raises(UnknownTopic):
            await one.delete_topic("t")


@pytest.mark.parametrize("address", ["a:1", "b:1"])
@in_cluster("a:1", "b:1")
async def test_a_change_whose_answer_was_lost_does_not_undo_a_later_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    connector = InProcessConnector(cluster.network)
    async with (
        ledgermq.Client(connector, [address], sources=virtual_sources(next(cluster.client_seeds))) as one,
        cluster.client() as other,
    ):
        await one.create_topic("t", 1)

        async def other_alters() -> None:
            for retention_ms in range(2000, 2000 + CHANGES_KEPT - 1):
                await other.alter_topic("t", settings={"retention.ms": retention_ms})

        lose_the_answer(monkeypatch, Controller, "alter_topic", stored=True, then=other_alters)
        told = await one.alter_topic("t", settings={"retention.ms": 1000})
        found = (await other.describe_topic("t")).settings
        assert found == told.settings == {"retention.ms": str(2000 + CHANGES_KEPT - 2)}


@in_cluster("a:1", "b:1")
async def test_a_change_that_was_not_made_is_made_by_the_next_attempt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other:
        await one.create_topic("t", 1)

        async def other_alters() -> None:
            await other.alter_topic("t", settings={"retention.ms": 2000})

        lose_the_answer(monkeypatch, Controller, "alter_topic", stored=False, then=other_alters)
        await one.alter_topic("t", settings={"retention.ms": 1000})
        assert (await other.describe_topic("t")).settings == {"retention.ms": "1000"}


@in_cluster("a:1", "b:1")
async def test_a_change_is_of_the_topic_that_had_the_name_when_it_was_asked_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other:
        await one.create_topic("t", 1)

        async def other_creates_anew() -> None:
            await other.delete_topic("t")
            await other.create_topic("t", 1, wait=True)

        lose_the_answer(monkeypatch, Controller, "alter_topic", stored=True, then=other_creates_anew)
        with pytest.raises(UnknownTopic, match="the topic of that name has the id"):
            await one.alter_topic("t", settings={"retention.ms": 1000})
        assert (await other.describe_topic("t")).settings == {}


@in_cluster("a:1")
async def test_a_nonce_has_a_bound(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequest, match="at most 16 bytes, this one has 17"):
        await cluster.line("a:1").create_topic(pb.CreateTopicRequest(name="t", nonce=bytes(17)))
    with pytest.raises(InvalidRequest, match="at most 16 bytes, this one has 17"):
        await cluster.line("a:1").alter_topic(pb.AlterTopicRequest(name="t", nonce=bytes(17)))


@in_cluster("a:1", "b:1")
async def test_an_undeletion_whose_answer_was_lost_does_not_undo_a_later_deletion(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that changed nothing, as the topic was living."""
    async with cluster.client() as one, cluster.client() as other:
        await one.create_topic("t", 1, {"topic.delete.grace.ms": 3600 * 1000})
        for _ in range(2):
            lose_the_answer(
                monkeypatch, Controller, "undelete_topic", stored=True, then=lambda: other.delete_topic("t")
            )
            assert (await one.undelete_topic("t")).kept_until_ms
            assert [topic.name for topic in await one.list_topics(deleted=True)] == ["t"]
        with pytest.raises(UnknownTopic, match="undelete"):
            await one.describe_topic("t")
        assert not (await one.undelete_topic("t")).kept_until_ms
        assert (await one.describe_topic("t")).name == "t"


@in_cluster("a:1", "b:1")
async def test_an_undeletion_that_was_not_made_is_made_by_the_next_attempt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other:
        await one.create_topic("t", 1, {"topic.delete.grace.ms": 3600 * 1000})
        lose_the_answer(monkeypatch, Controller, "undelete_topic", stored=False, then=lambda: other.delete_topic("t"))
        assert not (await one.undelete_topic("t")).kept_until_ms
        assert await one.list_topics(deleted=True) == []


@pytest.mark.parametrize("stored", [True, False])
@in_cluster("a:1", "b:1")
async def test_an_undeletion_brings_back_no_later_topic_of_the_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    grace = {"topic.delete.grace.ms": 3600 * 1000}
    async with cluster.client() as one, cluster.client() as other:
        await one.create_topic("t", 1, grace)
        await one.delete_topic("t")

        async def other_makes_it_anew_and_deletes_it() -> None:
            await other.delete_topic("t", now=True)
            await other.create_topic("t", 1, grace, wait=True)
            await other.delete_topic("t")

        lose_the_answer(
            monkeypatch, Controller, "undelete_topic", stored=stored, then=other_makes_it_anew_and_deletes_it
        )
        with pytest.raises(UnknownTopic, match="the topic of that name has the id"):
            await one.undelete_topic("t")
        assert [topic.name for topic in await other.list_topics(deleted=True)] == ["t"]
        assert not (await one.undelete_topic("t")).kept_until_ms, "the next call means the later one"


@in_cluster("a:1")
async def test_what_is_deleted_for_good_is_not_brought_back(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        await client.delete_topic("t", now=True)
        with pytest.raises(UnknownTopic, match=r"deleted for good|does not exist"):
            await client.undelete_topic("t")

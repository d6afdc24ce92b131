"""Partitions that are moved and brokers that are drained while answers are lost and other programs order something
else: what was ordered last is in force. In virtual time.
"""

from __future__ import annotations

from types import MethodType
from typing import cast

import pytest

from ledgermq.errors import InvalidRequest, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.metadata.controller import Controller
from ledgermq_broker.service import DRAINS_KEPT, BrokerService
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.lost_answers import lose_the_answer
from tests.broker.test_move_partition import bundle_of, moving_cluster
from tests.broker.test_moves import SOURCE, TARGET, MovesCluster
from tests.waiting import until


async def move(cluster: MovesCluster, bundle: int, nonce: bytes, topic_id: int = 0) -> None:
    """Send a request to move the partition, and wait until what moves has moved."""
    request = pb.MovePartitionRequest(topic="t", partition=0, bundle=bundle, nonce=nonce, topic_id=topic_id)
    await cluster.line("b:1").move_partition(request)
    await until(lambda: cluster.has_ended("t", 0), timeout_s=3600)


@moving_cluster
async def test_a_repeated_move_does_not_undo_a_later_one(cluster: MovesCluster) -> None:
    """Also one to the bundle where the partition was already, which moved nothing."""
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        await move(cluster, TARGET, b"one")
        await move(cluster, SOURCE, b"another's")
        await move(cluster, TARGET, b"one")
        assert await bundle_of(client) == SOURCE
        await move(cluster, SOURCE, b"two")
        await move(cluster, TARGET, b"another's, too")
        await move(cluster, SOURCE, b"two")
        assert await bundle_of(client) == TARGET
        await move(cluster, SOURCE, b"three")
        assert await bundle_of(client) == SOURCE
        await cluster.check_root()


@moving_cluster
async def test_a_repeated_move_moves_no_partition_of_a_topic_made_anew(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        topic_id = (await client.create_topic("t", 1)).topic_id
        await move(cluster, TARGET, b"one", topic_id)
        await client.delete_topic("t", now=True)
        anew = await client.create_topic("t", 1, wait=True)
        with pytest.raises(UnknownTopic, match="the topic of that name has the id"):
            await move(cluster, 3 - anew.partitions[0].bundle, b"one", topic_id)


@pytest.mark.parametrize("stored", [True, False])
@moving_cluster
async def test_all_attempts_of_a_move_name_one_nonce_and_the_topic(
    cluster: MovesCluster, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    seen: list[pb.MovePartitionRequest] = []

    def note(service: BrokerService) -> None:
        true = service.move_partition

        async def noted(request: pb.MovePartitionRequest) -> pb.MovePartitionResponse:
            seen.append(request)
            return await true(request)

        monkeypatch.setattr(service, "move_partition", noted)

    async with cluster.client() as client:
        topic_id = (await client.create_topic("t", 1)).topic_id
        for broker in cluster.brokers.values():
            note(broker.service)
        lose_the_answer(monkeypatch, Controller, "move_partition", stored=stored)
        await client.move_partition("t", 0, TARGET)
        assert await bundle_of(client) == TARGET
        assert len({request.nonce for request in seen}) == 1
        assert len(seen[0].nonce) == 16
        assert {request.topic_id for request in seen} == {topic_id}


def drained(cluster: Cluster) -> list[str]:
    return [address for address, broker in cluster.brokers.items() if broker.membership.is_draining]


@in_cluster("a:1", "b:1")
async def test_a_drain_whose_answer_was_lost_does_not_undo_its_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other:

        async def other_ends_it() -> None:
            await other.undrain_broker("a:1")

        lose_the_answer(monkeypatch, cluster.brokers["a:1"].service, "drain_broker", stored=True, then=other_ends_it)
        with pytest.raises(InvalidRequest, match="a:1 was drained, and another call has ended that since"):
            await one.drain_broker("a:1")
        assert drained(cluster) == []
        await one.drain_broker("a:1")
        assert drained(cluster) == ["a:1"]


@in_cluster("a:1", "b:1")
async def test_the_end_of_a_drain_whose_answer_was_lost_does_not_undo_a_later_drain(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the broker was not drained when the call began."""
    async with cluster.client() as one, cluster.client() as other:

        async def other_drains() -> None:
            await other.drain_broker("a:1")

        for _ in range(2):
            lose_the_answer(monkeypatch, cluster.brokers["a:1"].service, "drain_broker", stored=True, then=other_drains)
            await one.undrain_broker("a:1")
            assert drained(cluster) == ["a:1"]
        await one.undrain_broker("a:1")
        assert drained(cluster) == []


@in_cluster("a:1", "b:1")
async def test_a_drain_that_was_not_made_is_made_by_the_next_attempt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other:

        async def other_undrains() -> None:
            await other.undrain_broker("a:1")

        lose_the_answer(monkeypatch, cluster.brokers["a:1"].service, "drain_broker", stored=False, then=other_undrains)
        await one.drain_broker("a:1")
        assert drained(cluster) == ["a:1"]


@in_cluster("a:1", "b:1")
async def test_nonces_of_moves_and_drains_have_bounds(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    line = cluster.line("a:1")
    for number in range(DRAINS_KEPT + 1):
        await line.drain_broker(pb.DrainBrokerRequest(address="a:1", undrain=True, nonce=bytes([number])))
    path = cast(MethodType, cluster.brokers["a:1"].service.drain_broker).__self__
    assert path._drains == tuple(bytes([n]) for n in range(1, DRAINS_KEPT + 1))
    with pytest.raises(InvalidRequest, match="at most 16 bytes, this one has 17"):
        await line.drain_broker(pb.DrainBrokerRequest(address="a:1", nonce=bytes(17)))
    with pytest.raises(InvalidRequest, match="at most 16 bytes, this one has 17"):
        await line.move_partition(pb.MovePartitionRequest(topic="t", bundle=1, nonce=bytes(17)))

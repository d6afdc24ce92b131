"""Transactions whose bundle or coordinator changes hands, whose producer dies, whose coordinator does not answer."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import TransactionAborted, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.internal.bundle_calls import CALL_S_MAX
from ledgermq_broker.transactions.partition import TransactionPartition
from ledgermq_broker.transactions.state.types import Part, State, Transaction
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.transaction_calls import (
    Producer,
    beginner,
    constants_of,
    coordinator_bundle,
    served,
    stand_still_after,
)
from tests.broker.transaction_looks import BUNDLES, is_served, owner_of_bundle
from tests.waiting import until


@in_cluster("a:1", "b:1", "c:1", **BUNDLES)
async def test_what_is_decided_is_completed_by_whoever_owns_the_bundle_next(cluster: Cluster) -> None:
    """The bundle's owner hangs when the decision is made, and dies then."""
    await cluster.create("t", 3)
    producer = await beginner(cluster, "orders")
    for partition in range(3):
        await producer.send("t", partition, b"x%d" % partition)
    deciding = owner_of_bundle(cluster, coordinator_bundle(cluster, "orders"))
    victim = next(address for address in cluster.brokers if address != deciding and owns_some(cluster, address))
    cluster.views[victim].pause()
    assert await producer.commit() == pb.COMMITTED
    assert not await producer.is_complete()
    await cluster.stop(victim, graceful=False)
    await producer.completed()
    assert [await cluster.read_all("t", partition) for partition in range(3)] == [[b"x0"], [b"x1"], [b"x2"]]


@in_cluster("a:1", "b:1", "c:1", **BUNDLES)
async def test_the_next_coordinator_goes_on_with_what_was_decided(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    producer = await beginner(cluster, "orders")
    for partition in range(3):
        await producer.send("t", partition, b"x%d" % partition)
    bundle = coordinator_bundle(cluster, "orders")
    deciding = owner_of_bundle(cluster, bundle)

    async def lost(*_: object) -> bool:
        raise Unavailable("the call is lost")

    served(cluster)[bundle].coordinating._completer._push = lost
    await producer.commit()
    await cluster.stop(deciding, graceful=False)
    await producer.completed()
    assert [await cluster.read_all("t", partition) for partition in range(3)] == [[b"x0"], [b"x1"], [b"x2"]]


def owns_some(cluster: Cluster, address: str) -> bool:
    return bool({1, 2, 3} & cluster.brokers[address].ownership.opened.keys())


@in_cluster("a:1", "b:1", constants=constants_of(chunk_bytes=1), **BUNDLES)
async def test_a_commit_in_many_segments_goes_on_after_a_takeover_between_two(cluster: Cluster) -> None:
    """Each batch takes one segment. The next owner continues from the log without a call; each batch is
    visible once, in order.
    """
    values = [b"%d" % value for value in range(12)]
    topic = await cluster.create("t", 1)
    producer = await beginner(cluster, "orders")
    for value in values:
        await producer.send("t", 0, value)
    target, deciding = topic.partitions[0].bundle, coordinator_bundle(cluster, "orders")
    dying = owner_of_bundle(cluster, target)
    found = served(cluster)
    copier = found[target]._copier
    stands = stand_still_after(copier, 5)
    await producer.commit()
    await asyncio.wait_for(stands.wait(), 10)
    assert await cluster.read_all("t", 0) == values[:5]

    async def lost(*_: object) -> bool:
        raise Unavailable("the call is lost")

    if deciding in found:
        found[deciding].coordinating._completer._push = lost
    await cluster.stop(dying, graceful=False)
    await until(lambda: is_served(cluster, "t", len(values)), 60)
    assert await cluster.read_all("t", 0) == values


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_what_a_dead_producer_left_is_aborted_after_its_time_out(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    dead = await beginner(cluster, "orders", timeout_ms=20_000)
    for partition in range(3):
        await dead.send("t", partition, b"never")
    await cluster.produce("t", 0, b"other")
    await asyncio.sleep(25)
    assert sum(found.participant.staged_batches for found in served(cluster).values()) == 3
    await until(lambda: not any(found.participant.staged_batches for found in served(cluster).values()), 60)
    with pytest.raises(TransactionAborted):
        await dead.commit()
    assert await cluster.read_all("t", 0) == [b"other"]


@in_cluster("a:1", constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_a_coordinator_that_does_not_answer_holds_up_no_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await cluster.create("t", 1)
    await Producer(cluster, "first").init()
    names = [f"id{number}" for number in range(300)]
    silent = coordinator_bundle(cluster, names[0])
    unlucky = [name for name in names if coordinator_bundle(cluster, name) == silent][:64]
    lucky = next(name for name in names if coordinator_bundle(cluster, name) != silent)
    found = served(cluster)[topic.partitions[0].bundle]
    ask_coordinator = found.peers.ask

    async def silence(transaction: Transaction, question: pb.Question, part: Part | None = None) -> State:
        if transaction.transactional_id != lucky:
            await asyncio.sleep(CALL_S_MAX)
            raise Unavailable("no answer")
        return await ask_coordinator(transaction, question, part)

    monkeypatch.setattr(found.peers, "ask", silence)
    for name in unlucky:
        await (await beginner(cluster, name)).send("t", 0, b"x")
    await asyncio.sleep(5)
    dead = await beginner(cluster, lucky, timeout_ms=1000)
    await dead.send("t", 0, b"y")
    await until(lambda: all(info.transaction.transactional_id != lucky for info in staged_in(found)), 45, every_s=1)
    assert len(staged_in(found)) == len(unlucky) == 64


def staged_in(found: TransactionPartition) -> list[pb.StagedInfo]:
    return found.participant.staged_infos()

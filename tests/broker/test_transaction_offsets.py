"""Offsets of groups in transactions: committed with the records, and free again when a transaction ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from ledgermq.errors import Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.transactions import from_wire
from ledgermq_broker.transactions.partition import TransactionPartition
from ledgermq_broker.transactions.state.types import Part, State, Transaction
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import committed_offset
from tests.broker.transaction_calls import beginner, code_of, constants_of, coordinator_bundle, served
from tests.broker.transaction_looks import BUNDLES, is_free
from tests.waiting import until


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_offsets_are_committed_with_the_records_and_wait_meanwhile(cluster: Cluster) -> None:
    await cluster.create("in", 2)
    await cluster.create("out", 1)
    await cluster.produce("in", 0, b"a", b"b")
    producer = await beginner(cluster, "copy")
    await producer.send("out", 0, b"A")
    assert await producer.stage_offset("g", "in", 0, 2) == ""
    with pytest.raises(Unavailable):
        await committed_offset(cluster, "g", "in", 0)
    assert await committed_offset(cluster, "g", "in", 1) is None
    await producer.commit()
    await producer.completed()
    assert await committed_offset(cluster, "g", "in", 0) == 2
    assert await cluster.read_all("out", 0) == [b"A"]
    producer.begin()
    await cluster.produce("in", 0, b"c")
    assert await producer.stage_offset("g", "in", 0, 3) == ""
    await producer.abort()
    await producer.completed()
    assert await committed_offset(cluster, "g", "in", 0) == 2


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_offsets_that_a_dead_producer_left_let_the_partition_go(cluster: Cluster) -> None:
    await cluster.create("in", 1)
    await cluster.produce("in", 0, b"a", b"b")
    dead = await beginner(cluster, "copy", timeout_ms=1000)
    assert await dead.stage_offset("g", "in", 0, 2) == ""
    with pytest.raises(Unavailable):
        await committed_offset(cluster, "g", "in", 0)
    await until(lambda: is_free(cluster, "g", "in"), 60, every_s=1)
    assert await committed_offset(cluster, "g", "in", 0) is None


@in_cluster("a:1", constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_offsets_of_more_groups_than_a_call_takes_let_their_partitions_go(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_wire, "GROUPS_MAX", 2)
    await cluster.create("in", 1)
    await cluster.produce("in", 0, b"a", b"b")
    dead = await beginner(cluster, "copy", timeout_ms=1000)
    for number in range(3 * 3):  # three in one of the bundles
        assert await dead.stage_offset(f"g{number}", "in", 0, 2) == ""
    assert max(len(part.groups) for part in dead.parts.values()) > 2
    for number in range(3 * 3):
        await until(partial(is_free, cluster, f"g{number}", "in"), 60, every_s=1)


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_offsets_of_a_fenced_epoch_hold_the_partition_up_for_a_moment_only(cluster: Cluster) -> None:
    """A restarted processor does not wait for the transaction that it left open."""
    await cluster.create("in", 1)
    await cluster.create("out", 3)
    await cluster.produce("in", 0, b"a", b"b")
    dead = await beginner(cluster, "copy")
    assert await dead.stage_offset("g", "in", 0, 2) == ""
    for partition in range(3):
        await dead.send("out", partition, b"never")
    await beginner(cluster, "copy")
    await until(lambda: is_free(cluster, "g", "in"), 2, every_s=0.1)
    assert await committed_offset(cluster, "g", "in", 0) is None
    owned = [found for broker in cluster.brokers.values() for found in broker.transactions.served()]
    own = [found for found in owned if found.bundle == coordinator_bundle(cluster, "copy")]
    await until(lambda: not any(found.participant.staged_batches for found in own), 2)


@in_cluster("a:1", **BUNDLES)
async def test_one_who_waits_for_an_open_transaction_asks_five_times_a_second_at_most(cluster: Cluster) -> None:
    await cluster.create("in", 1)
    await cluster.produce("in", 0, b"a", b"b")
    living = await beginner(cluster, "copy")
    assert await living.stage_offset("g", "in", 0, 2) == ""
    questions: list[pb.Question] = []
    for found in served(cluster).values():
        found.peers.ask = counting(found, questions)  # type: ignore[method-assign, assignment]
    for _ in range(100):
        assert await code_of(lambda: committed_offset(cluster, "g", "in", 0)) == "UNAVAILABLE"
        await asyncio.sleep(0.01)
    assert 2 <= len(questions) <= 7, "one each 0.2 s, however many calls wait"
    await living.commit()
    await until(lambda: is_free(cluster, "g", "in"), 2, every_s=0.05)
    assert await committed_offset(cluster, "g", "in", 0) == 2


Asked = Callable[[Transaction, pb.Question, Part | None], Coroutine[Any, Any, State]]


def counting(found: TransactionPartition, questions: list[pb.Question]) -> Asked:
    real = found.peers.ask

    async def ask_counted(transaction: Transaction, question: pb.Question, part: Part | None = None) -> State:
        questions.append(question)
        return await real(transaction, question, part)

    return ask_counted


@in_cluster(constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_what_an_owner_with_a_fast_clock_has_staged_is_asked_about_at_once(cluster: Cluster) -> None:
    await cluster.start("a:1", skew_s=3600)
    await cluster.settled()
    topic = await cluster.create("t", 1)
    await cluster.produce("t", 0, b"a", b"b")
    dead = await beginner(cluster, "orders", timeout_ms=1000)
    await dead.send("t", 0, b"x")
    for number in range(9):  # in each bundle some
        assert await dead.stage_offset(f"g{number}", "t", 0, 2) == ""
    await cluster.stop("a:1", graceful=False)
    await cluster.start("b:1")
    await cluster.settled()
    target = topic.partitions[0].bundle
    await until(lambda: target in served(cluster), 60)
    found = served(cluster)[target]
    await until(lambda: not found.participant.open_count, 60, every_s=1)
    for number in range(9):
        await until(partial(is_free, cluster, f"g{number}", "t"), 60, every_s=1)

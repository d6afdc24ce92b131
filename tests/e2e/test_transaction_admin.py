"""Operate transactions through the SDK, on brokers in virtual time: what is open and staged, an
operator's decisions, and reports while a part of the cluster is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import ledgermq
from ledgermq import TopicPartition
from ledgermq.errors import InvalidRequest, TransactionUnknown, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.transactions.stored.check import check_transactions
from ledgermq_broker.transactions.stored.view import read_transactions
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.open_root import cluster_of
from ledgermq_tools.ledger.inspect.topics.transactions_report import transactions_report
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.transaction_calls import Producer, beginner
from tests.e2e.test_client_takeover import client_of
from tests.virtual_time import virtual_sources
from tests.waiting import until

BUNDLES = {"bundles": 4}


async def prepared(cluster: Cluster, name: str, topic: str, partitions: int = 1) -> Producer:
    producer = await beginner(cluster, name, kind=pb.TWO_PHASE)
    for partition in range(partitions):
        await producer.send(topic, partition, b"x")
    await producer.end(pb.PREPARED)
    return producer


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_cluster_without_transactions_has_an_empty_list(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        found = await client.transactions.list()
        assert (found.transactions, found.staged, found.unanswered) == ((), (), {})
        with pytest.raises(TransactionUnknown):
            await client.transactions.describe("nobody")


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_what_is_open_and_staged_is_listed_over_all_coordinators(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await cluster.create("t", 3)
        names = [f"x{number}" for number in range(6)]
        for name in names:
            await prepared(cluster, name, "t", 2)
        over = await beginner(cluster, "over")
        await over.send("t", 2, b"y")
        await over.commit()
        await over.completed()
        over.begin()
        found = await client.transactions.list()
        assert [one.transactional_id for one in found.transactions] == names
        assert {(one.kind, one.state, one.complete, one.missing) for one in found.transactions} == {
            ("two_phase", "prepared", False, ())
        }
        assert len({one.partition for one in found.transactions}) > 1, "of several coordinators"
        held = {(one.transactional_id, one.bundle) for one in found.staged}
        assert not any(one.parts for one in found.transactions)
        bundles = {part.bundle for name in names for part in (await client.transactions.describe(name)).parts}
        assert held == {(name, bundle) for name in names for bundle in bundles}
        assert len(bundles) == 2
        assert all(one.batches == 1 and one.bytes > 0 for one in found.staged)
        listed = {one.transactional_id: one for one in (await client.transactions.list(open_only=False)).transactions}
        assert set(listed) == {*names, "over"}
        assert (listed["over"].state, listed["over"].complete, listed["over"].number) == ("committed", True, 1)


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_what_a_silent_producer_left_undecided_is_shown_as_such(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await cluster.create("t", 1)
        producer = await beginner(cluster, "silent", timeout_ms=300_000)
        await producer.send("t", 0, b"x")
        await producer.commit()
        await producer.completed()
        producer.begin()
        await producer.send("t", 0, b"y")
        await asyncio.sleep(20)
        [open_one] = (await client.transactions.list()).transactions
        assert (open_one.state, open_one.number, open_one.complete) == ("undecided", 2, False)
        aborted = await client.transactions.resolve("silent", commit=False)
        assert (aborted.state, aborted.number) == ("aborted_by_operator", 2)
        await until(lambda: nothing_staged(client), 60, every_s=1)
        assert await cluster.read_all("t", 0) == [b"x"]
        await client.transactions.forget("silent")
        assert (await client.transactions.describe("silent")).state == "aborted"


async def nothing_staged(client: ledgermq.Client) -> bool:
    return not (await client.transactions.list()).staged


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_an_operator_commits_and_forgets_what_is_prepared(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await cluster.create("t", 2)
        await prepared(cluster, "xid", "t", 2)
        described = await client.transactions.describe("xid")
        assert described.coordinator in cluster.brokers
        assert {one.bundle for one in described.staged} == {part.bundle for part in described.parts}
        assert [sum(part.batches.values()) for part in described.parts] == [1, 1]
        with pytest.raises(InvalidRequest):
            await client.transactions.forget("xid")
        assert (await client.transactions.resolve("xid", commit=True)).state == "committed_by_operator"
        again = await client.transactions.resolve("xid", commit=True)
        assert again.state == "committed_by_operator", "it may be repeated"
        with pytest.raises(InvalidRequest):
            await client.transactions.resolve("xid", commit=False)
        await until(lambda: is_complete(client, "xid"), 30)
        assert [await cluster.read_all("t", partition) for partition in range(2)] == [[b"x"], [b"x"]]
        with pytest.raises(InvalidRequest, match="not incomplete in bundle 1"):
            await client.transactions.give_up("xid", 1)
        await client.transactions.forget("xid")
        with pytest.raises(TransactionUnknown):
            await client.transactions.describe("xid")


async def is_complete(client: ledgermq.Client, name: str) -> bool:
    return (await client.transactions.describe(name, staged=False)).complete


@pytest.mark.parametrize("silent", [{0}, {1}, {0, 2}, {0, 1, 2}])
@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_partition_that_does_not_answer_is_named_and_the_rest_is_listed(
    cluster: Cluster, silent: set[int]
) -> None:
    async with client_of(cluster, timeout_s=20.0) as client:
        await cluster.create("t", 3)
        for number in range(8):
            await prepared(cluster, f"x{number}", "t", 3)
        whole = await client.transactions.list()
        for broker in cluster.brokers.values():
            broker.service.list_transactions = refusing(broker.service.list_transactions, silent)  # type: ignore[method-assign]
        begun = asyncio.get_running_loop().time()
        if len(silent) == 3:
            with pytest.raises(Unavailable, match="is away"):
                await client.transactions.list()
        else:
            found = await client.transactions.list()
            assert found.unanswered.keys() == silent
            assert all("is away" in str(error) for error in found.unanswered.values())
            assert found.transactions == tuple(one for one in whole.transactions if one.partition not in silent)
            assert found.staged == tuple(one for one in whole.staged if one.bundle - 1 not in silent)
            described = await client.transactions.describe("x0")
            assert described.unanswered.keys() == silent
            assert {one.bundle for one in described.staged} == {1, 2, 3} - {one + 1 for one in silent}
        assert asyncio.get_running_loop().time() - begun < 40


ListTransactions = Callable[[pb.ListTransactionsRequest], Awaitable[pb.ListTransactionsResponse]]


def refusing(inner: ListTransactions, silent: set[int]) -> ListTransactions:
    """The same call, but lists of these partitions are refused."""

    async def list_transactions(request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
        if request.partition in silent:
            raise Unavailable(f"partition {request.partition} is away")
        return await inner(request)

    return list_transactions


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_staged_offsets_are_shown_with_their_group(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await cluster.create("in", 2)
        await cluster.produce("in", 1, b"a", b"b")
        producer = await beginner(cluster, "copy")
        assert await producer.stage_offset("g", "in", 1, 2) == ""
        described = await client.groups.describe("g")
        assert described.committed == {}
        [(at, staged)] = described.staged.items()
        assert at == TopicPartition("in", 1)
        assert (staged.offset, staged.transactional_id, staged.epoch, staged.number) == (2, "copy", 1, 1)
        [held] = (await client.transactions.list()).staged
        assert (held.transactional_id, held.batches, held.groups) == ("copy", 0, ("g",))
        assert held.oldest_ms == staged.staged_ms > 0
        await producer.commit()
        await producer.completed()
        described = await client.groups.describe("g")
        assert described.staged == {}
        assert described.committed[at].stored.offset == 2


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_the_store_alone_says_what_the_brokers_say(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await cluster.create("in", 1)
        await cluster.create("t", 3)
        await cluster.produce("in", 0, b"a")
        for number in range(5):
            await prepared(cluster, f"x{number}", "t", 3)
        over = await beginner(cluster, "over")
        await over.send("t", 1, b"x")
        await over.commit()
        await over.completed()
        over.begin()
        await over.send("t", 2, b"y")
        assert await over.stage_offset("g", "in", 0, 1) == ""
        listed = await client.transactions.list(open_only=False)
        sources = virtual_sources(9)
        report = await transactions_report(cluster.store, sources, every=True)
        ids, staged = (table.rows for table in report.tables[:2])
        assert report.findings == []
        assert {(row["id"], row["state"], row["complete"]) for row in ids} == {
            (one.transactional_id, one.state, one.complete) for one in listed.transactions
        }
        assert {
            (row["bundle"], row["id"], row["number"], row["batches"], row["bytes"], row["oldest_ms"], *row["groups"])
            for row in staged
        } == {
            (one.bundle, one.transactional_id, one.number, one.batches, one.bytes, one.oldest_ms, *one.groups)
            for one in listed.staged
        }
        problems = Problems()
        found = await read_transactions(cluster.store, await cluster_of(cluster.store), sources, problems.collecting)
        check_transactions(found, problems, sources.now_ms())
        assert problems.all == []

"""Decide about half messages that no producer knew about, as an operator does, on brokers in virtual
time.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import ledgermq
from ledgermq.client.operating.unresolved import UnresolvedMessage
from ledgermq.errors import InvalidRequest, TransactionFenced, Unavailable, UnknownPartition
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.unresolved import CHECKS, ID, PARTITION, TOPIC
from ledgermq_broker.transactions.coordinating.unresolved import UnresolvedCopies
from ledgermq_broker.transactions.partition import TransactionPartition
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import ask
from tests.broker.transaction_calls import beginner, constants_of
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until

BUNDLES = {"bundles": 4, "constants": constants_of(unchecked_ms_max=20_000)}
GROUP = "orders-checkers"


async def unresolved(cluster: Cluster, *names: str) -> None:
    """Half messages of a program that died, for partition 1 of `t`."""
    for name in names:
        producer = await beginner(cluster, name, kind=pb.HALF_MESSAGE, check_group=GROUP)
        await producer.send("t", 1, f"value of {name}".encode())
    for name in names:
        await until(partial(is_unresolved, cluster, name), 100, every_s=1)


async def is_unresolved(cluster: Cluster, name: str) -> bool:
    request = pb.DescribeTransactionRequest(transactional_id=name)
    found = (await ask(cluster, lambda line: line.describe_transaction(request))).transaction
    return found.complete and found.state == pb.UNRESOLVED


def waiting(found: list[UnresolvedMessage]) -> list[str]:
    return [each.transactional_id for each in found if each.decision is None]


async def until_waiting(client: ledgermq.Client, names: list[str]) -> None:
    """Wait until a decision is visible, which it is soon after it was made."""

    async def is_so() -> bool:
        return waiting(await client.unresolved.list(GROUP, decided=True)) == names

    await until(is_so)


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_each_is_published_once_or_dropped_and_then_waits_no_longer(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    async with client_of(cluster) as client:
        assert await client.unresolved.groups() == []
        assert await client.unresolved.list(GROUP, decided=True) == []
        await unresolved(cluster, "h-1", "h-2", "h-3")
        assert await client.unresolved.groups() == [GROUP]
        found = await client.unresolved.list(GROUP, decided=True)
        assert sorted(waiting(found)) == ["h-1", "h-2", "h-3"]
        assert {(each.topic, each.partition, each.checks, len(each.messages)) for each in found} == {("t", 1, 0, 0)}
        [published] = await client.unresolved.commit(GROUP, ["h-2"])
        assert (published.transactional_id, published.decision) == ("h-2", "commit")
        await client.unresolved.rollback(GROUP, ["h-1"])
        await client.unresolved.commit(GROUP, ["h-2", "h-2"])
        await until_waiting(client, ["h-3"])
        for name, decision in (("h-1", "commit"), ("h-2", "rollback"), ("h-9", "commit")):
            with pytest.raises(InvalidRequest, match=name):
                await getattr(client.unresolved, decision)(GROUP, ["h-3", name])
        assert waiting(await client.unresolved.list(GROUP, decided=True)) == ["h-3"], (
            "what was refused has changed nothing"
        )
        await until(lambda: has(cluster, [b"value of h-2"]))
        async with client.consumer("t", until_end=True) as consumer:
            assert [(message.partition, message.value, message.headers) async for message in consumer] == [
                (1, b"value of h-2", ())
            ]


async def has(cluster: Cluster, values: list[bytes]) -> bool:
    return await cluster.read_all("t", 1) == values


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_command_that_is_repeated_after_a_lost_answer_publishes_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create("t", 2)
    await unresolved(cluster, "h-1")
    commit = ledgermq.Transaction.commit

    async def commit_and_die(self: ledgermq.Transaction, timeout_s: float | None = None) -> None:
        await commit(self, timeout_s)
        raise Unavailable("the answer was lost")

    async with client_of(cluster) as client:
        with monkeypatch.context() as patch:
            patch.setattr(ledgermq.Transaction, "commit", commit_and_die)
            with pytest.raises(Unavailable, match="the answer was lost"):
                await client.unresolved.commit(GROUP, ["h-1"])
        [again] = await client.unresolved.commit(GROUP, ["h-1"])
        assert again.decision == "commit"
        await asyncio.sleep(5)
        assert await cluster.read_all("t", 1) == [b"value of h-1"]


@in_cluster("a:1", "b:1", **BUNDLES, producer_states_max=2)
async def test_a_copy_that_was_stored_again_is_listed_and_published_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the copy was lost, and its ledger forgot the copy's session before the next attempt."""
    await cluster.create("t", 2)
    await cluster.create("others", 16)
    store = UnresolvedCopies.store
    attempts = 0

    async def store_and_lose_the_answer(self: UnresolvedCopies, *about: Any) -> None:
        nonlocal attempts
        await store(self, *about)
        attempts += 1
        if attempts == 1:
            async with client.producer() as producer:
                for partition in range(16):
                    await producer.send("others", b"", partition=partition)
            raise Unavailable("the answer was lost")

    monkeypatch.setattr(UnresolvedCopies, "store", store_and_lose_the_answer)
    async with client_of(cluster) as client:
        await unresolved(cluster, "h-1")
        copies = await cluster.read_all(f"{GROUP}.unresolved", 0)
        assert copies == [b"value of h-1"] * 2, "the ledger remembers two producers, and there were 16 others"
        [listed] = await client.unresolved.list(GROUP)
        assert (listed.offset, listed.bytes) == (0, len("value of h-1"))
        assert len((await client.unresolved.get(GROUP, "h-1")).messages) == 1
        await client.unresolved.commit(GROUP, ["h-1"])
        await until(lambda: has(cluster, [b"value of h-1"]))
        await asyncio.sleep(5)
        assert await cluster.read_all("t", 1) == [b"value of h-1"]


@in_cluster("a:1", "b:1", **BUNDLES, producer_states_max=2)
async def test_a_copy_is_stored_once_however_long_the_bundle_of_its_message_is_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the ledger of the copy forgets the session in which it was stored."""
    await cluster.create("t", 2)
    await cluster.create("others", 16)
    complete = TransactionPartition.complete
    refused = 0

    async def refuse_twice(self: TransactionPartition, *about: Any) -> bool:
        nonlocal refused
        if refused == 2:
            return await complete(self, *about)
        refused += 1
        async with client.producer() as producer:
            for partition in range(16):
                await producer.send("others", b"", partition=partition)
        raise Unavailable("the bundle is away")

    monkeypatch.setattr(TransactionPartition, "complete", refuse_twice)
    async with client_of(cluster) as client:
        await unresolved(cluster, "h-1")
        assert refused == 2
        assert await cluster.read_all(f"{GROUP}.unresolved", 0) == [b"value of h-1"]


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_of_two_operators_one_decides(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    names = [f"h-{number}" for number in range(5)]
    await unresolved(cluster, *names)
    async with client_of(cluster) as one, client_of(cluster) as other:
        ended = await asyncio.gather(
            one.unresolved.commit(GROUP, names), other.unresolved.rollback(GROUP, names), return_exceptions=True
        )
        errors = [type(each) for each in ended if isinstance(each, BaseException)]
        assert errors
        assert set(errors) <= {TransactionFenced, InvalidRequest}
        decisions = {each.transactional_id: each.decision for each in await one.unresolved.list(GROUP, decided=True)}
        published = {f"value of {name}".encode() for name, decision in decisions.items() if decision == "commit"}
        await asyncio.sleep(5)
        assert sorted(await cluster.read_all("t", 1)) == sorted(published)


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_record_that_only_looks_like_an_unresolved_message_is_not_published(cluster: Cluster) -> None:
    """Any program that may write the topic can forge one, also under an id of a real one."""
    await cluster.create("t", 2)
    await cluster.create("payments", 2)
    await unresolved(cluster, "h-1", "h-2")
    await beginner(cluster, "begun", kind=pb.HALF_MESSAGE, check_group=GROUP)
    async with client_of(cluster) as client:
        forged = [("unknown", "t", 1), ("begun", "t", 1), ("h-3", "payments", 0), ("h-4", "t", 0)]
        await unresolved(cluster, "h-3", "h-4")
        await client.delete_records(GROUP + ".unresolved", {0: 4})  # so that the forged ones come first
        async with client.producer() as producer:
            for name, topic, partition in forged:
                headers = [(ID, name), (TOPIC, topic), (PARTITION, str(partition)), (CHECKS, "15")]
                await producer.send(GROUP + ".unresolved", b"pay mallory", headers=headers)
        assert waiting(await client.unresolved.list(GROUP, decided=True)) == [name for name, _, _ in forged]
        for name, topic, _ in forged:
            with pytest.raises(InvalidRequest, match=f"{name}.*{topic}.*is not published"):
                await client.unresolved.commit(GROUP, [name])
        await asyncio.sleep(2)
        assert [await cluster.read_all(name, at) for name in ("t", "payments") for at in range(2)] == [[]] * 4
        await client.unresolved.commit(GROUP, ["unknown"], unverified=True)
        await client.unresolved.rollback(GROUP, [name for name, _, _ in forged[1:]])
        await until_waiting(client, [])
        assert await cluster.read_all("t", 1) == [b"pay mallory"]


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_message_whose_partition_is_gone_can_still_be_dropped(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await unresolved(cluster, "h-1")
    async with client_of(cluster) as client:
        await client.delete_topic("t")
        await until(partial(created, cluster), 300, every_s=1)
        with pytest.raises(UnknownPartition):
            await client.unresolved.commit(GROUP, ["h-1"])
        assert waiting(await client.unresolved.list(GROUP, decided=True)) == ["h-1"]
        await client.unresolved.rollback(GROUP, ["h-1"])
        await until_waiting(client, [])


async def created(cluster: Cluster) -> bool:
    try:
        await cluster.create("t", 1)
    except ledgermq.LedgerMQError:
        return False
    return True

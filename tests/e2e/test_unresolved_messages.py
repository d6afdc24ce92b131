"""Decide about half messages that no producer knew about, as an operator does, on brokers in virtual
time.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

import ledgermq
from ledgermq.client.operating.unresolved import UnresolvedMessage
from ledgermq.errors import InvalidRequest, TransactionFenced, Unavailable, UnknownPartition
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.unresolved import CHECKS, ID, PARTITION, TOPIC
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

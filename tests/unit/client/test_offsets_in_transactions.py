"""Offsets of a group in transactions: committed if and only if the transaction is, by no other
member meanwhile, and never left behind when the partition goes to another member (design X14).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import ledgermq
from ledgermq import TopicPartition, errors
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.unit.client.transaction_broker import TransactionCluster
from tests.unit.client.transaction_clients import now_s, transaction_cluster
from tests.virtual_time import virtual_in
from tests.waiting import until

with_transactions = virtual_in(transaction_cluster, "cluster", "client")


def member(client: ledgermq.Client, **settings: object) -> ledgermq.GroupConsumer:
    return client.consumer("t", group="g", commit="manual", **settings)


async def read(consumer: ledgermq.GroupConsumer, count: int) -> list[ledgermq.GroupMessage]:
    found: list[ledgermq.GroupMessage] = []
    while len(found) < count:
        found += await consumer.fetch(count - len(found), timeout=5)
    return found


async def process(transaction: ledgermq.Transaction, consumer: ledgermq.GroupConsumer, count: int) -> None:
    """Read, process, write."""
    messages = await read(consumer, count)
    for message in messages:
        assert message.value is not None
        transaction.send("t", message.value.upper(), partition=1)
    await transaction.send_offsets(consumer, messages)


@with_transactions
async def test_offsets_are_committed_with_the_records(cluster: TransactionCluster, client: ledgermq.Client) -> None:
    cluster.log[0] = [b"a", b"b", b"c", b"d"]
    async with member(client) as consumer, client.transactions("billing-7") as transactions:
        for _ in range(2):
            async with transactions.begin() as transaction:
                await process(transaction, consumer, 2)
                assert cluster.committed[0] < consumer.position(0)
        assert cluster.committed[0] == 4
        assert "commit_offsets" not in cluster.calls
        assert [at.outstanding for at in consumer.member.holdings.held.values()] == [0, 0]
        assert await consumer.commit() == {}, "nothing is left to commit"
    assert cluster.visible == {1: [b"A", b"B", b"C", b"D"]}
    assert cluster.committed == {0: 4, 1: 0}


@with_transactions
async def test_offsets_alone_are_a_transaction(cluster: TransactionCluster, client: ledgermq.Client) -> None:
    async with member(client) as consumer, client.transactions("billing-7") as transactions:
        cluster.log[0] = [b"a", b"b"]
        await read(consumer, 2)
        async with transactions.begin() as transaction:
            await transaction.send_offsets(consumer, {TopicPartition("t", 0): 1})
            await transaction.send_offsets(consumer, {TopicPartition("t", 0): 2})
            await transaction.send_offsets(consumer, [])
    assert cluster.committed[0] == 2
    (end,) = cluster.ends
    assert [(part.bundle, list(part.groups)) for part in end.parts] == [(9, ["g"])]


@with_transactions
async def test_after_an_abort_the_messages_are_delivered_again(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.log[0] = [b"a", b"b", b"c"]
    async with member(client) as consumer, client.transactions("billing-7") as transactions:
        async with transactions.begin() as transaction:
            await process(transaction, consumer, 1)
        transaction = transactions.begin()
        await transaction.start()
        (message,) = await read(consumer, 1)
        await transaction.send_offsets(consumer, [message])
        await transaction.abort()
        assert not message.ack(), "it will be delivered again"
        async with transactions.begin() as transaction:
            await process(transaction, consumer, 2)
    assert cluster.visible == {1: [b"A", b"B", b"C"]}
    assert cluster.committed[0] == 3


@with_transactions
async def test_a_transaction_that_fails_before_its_offsets_were_sent_rewinds_what_it_was_reading(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.log[0] = [b"a", b"b"]
    async with member(client) as consumer, client.transactions("billing-7") as transactions:

        async def fail() -> None:
            async with transactions.begin(reading=consumer):
                await read(consumer, 2)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert [message.value for message in await read(consumer, 2)] == [b"a", b"b"]


@pytest.mark.parametrize("fault", ["lost", "doubled", "refused"])
def test_a_fault_of_staging_offsets_changes_nothing(fault: str) -> None:
    @with_transactions
    async def run(cluster: TransactionCluster, client: ledgermq.Client) -> None:
        cluster.log[0] = [b"a", b"b"]
        if fault == "refused":
            cluster.faults.refused["stage_offsets"] = [errors.Unavailable("not now")]
        else:
            getattr(cluster.faults, fault)["stage_offsets"] = 2
        async with (
            member(client) as consumer,
            client.transactions("billing-7") as transactions,
            transactions.begin() as transaction,
        ):
            await process(transaction, consumer, 2)
        assert cluster.committed[0] == 2
        assert cluster.visible == {1: [b"A", b"B"]}

    run()


@with_transactions
async def test_offsets_that_may_not_be_staged_make_the_transaction_abort(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.log[0] = [b"a"]
    async with member(client) as consumer, client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        messages = await read(consumer, 1)
        cluster.faults.silent.add("stage_offsets")
        with pytest.raises(errors.TransactionAborted):
            await transaction.send_offsets(consumer, messages, timeout_s=3)
        cluster.faults.silent.clear()
        with pytest.raises(errors.TransactionAborted):
            await transaction.commit()
        assert cluster.committed[0] == 0
        async with transactions.begin() as again:
            await process(again, consumer, 1)
    assert cluster.committed[0] == 1


@with_transactions
async def test_nothing_is_committed_plainly_beside_an_open_transaction(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.log[0] = [b"a", b"b"]
    async with member(client) as consumer, client.transactions("billing-7") as transactions:
        first, second = await read(consumer, 2)
        async with transactions.begin() as transaction:
            await transaction.send_offsets(consumer, [first])
            with pytest.raises(errors.TransactionError, match="open transaction"):
                await consumer.commit([first, second])
            assert "commit_offsets" not in cluster.calls
        await consumer.commit([first, second])
    assert cluster.committed[0] == 2


@with_transactions
async def test_a_plain_commit_under_way_is_finished_before_offsets_are_staged(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.log[0] = [b"a", b"b"]
    async with member(client) as consumer, client.transactions("billing-7") as transactions:
        first, second = await read(consumer, 2)
        async with transactions.begin() as transaction:
            held = cluster.faults.held["commit_offsets"] = asyncio.Event()
            committing = asyncio.create_task(consumer.commit([first]))
            await until(lambda: "commit_offsets" in cluster.calls)
            staging = asyncio.create_task(transaction.send_offsets(consumer, [second]))
            await asyncio.sleep(1)
            assert "stage_offsets" not in cluster.calls
            held.set()
            await committing
            await staging
            assert cluster.committed[0] == 1
    assert cluster.committed[0] == 2


@with_transactions
async def test_two_open_transactions_cannot_commit_one_partition(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.log[0] = [b"a"]
    async with (
        member(client) as consumer,
        client.transactions("one") as one,
        client.transactions("two") as two,
        two.begin() as second,
    ):
        messages = await read(consumer, 1)
        first = one.begin()
        await first.start()
        await first.send_offsets(consumer, messages)
        with pytest.raises(errors.TransactionError, match="another open transaction"):
            await second.send_offsets(consumer, messages)
        await first.abort()
        await second.send_offsets(consumer, await read(consumer, 1))
    assert cluster.committed[0] == 1


@with_transactions
async def test_a_partition_waits_for_its_transaction_before_it_is_let_go(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.log[0] = [b"a"]
    async with member(client) as consumer, client.transactions("billing-7") as transactions:
        async with transactions.begin() as transaction:
            (message,) = await read(consumer, 1)
            transaction.send("t", b"A", partition=1)
            await transaction.send_offsets(consumer, [message])
            assert message.ack(), "the program has finished it"
            cluster.assign(1)
            await until(lambda: consumer.assignment == [TopicPartition("t", 1)])
            await asyncio.sleep(10)
            assert len(consumer.member.holdings.held) == 2, "not let go yet"
        await until(lambda: len(consumer.member.holdings.held) == 1)
    assert cluster.committed[0] == 1
    assert cluster.visible == {1: [b"A"]}


@with_transactions
async def test_a_transaction_that_stays_open_while_its_partition_is_wanted_back_is_aborted(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.log[0] = [b"a"]
    async with member(client, revoke_wait_s=5) as consumer, client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        await process(transaction, consumer, 1)
        begun = now_s()
        cluster.assign(1)
        await until(lambda: len(consumer.member.holdings.held) == 1)
        assert 4 < now_s() - begun < 12
        await until(lambda: transaction.state == "aborted")
        with pytest.raises(errors.TransactionAborted):
            transaction.send("t", b"late", partition=1)
        with pytest.raises(errors.TransactionAborted):
            await transaction.commit()
    assert [end.outcome for end in cluster.ends] == [pb.ABORTED]
    assert cluster.committed[0] == 0
    assert cluster.visible == {}


@with_transactions
async def test_closing_the_consumer_aborts_the_transaction_with_its_offsets(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.log[0] = [b"a"]
    async with client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        async with member(client) as consumer:
            await process(transaction, consumer, 1)
        with pytest.raises(errors.TransactionAborted):
            await transaction.commit()
    assert cluster.committed[0] == 0


@with_transactions
async def test_messages_that_are_no_longer_this_members_make_the_transaction_abort(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.log[0] = [b"a"]
    async with member(client) as consumer, client.transactions("billing-7") as transactions:
        messages = await read(consumer, 1)
        await consumer.seek(0, 0)
        transaction = transactions.begin()
        await transaction.start()
        with pytest.raises(errors.TransactionAborted):
            await transaction.send_offsets(consumer, messages)
        with pytest.raises(errors.TransactionAborted):
            await transaction.commit()
    assert "stage_offsets" not in cluster.calls


@with_transactions
async def test_offsets_wait_for_an_outcome_that_is_unknown(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.log[0] = [b"a", b"b"]
    async with member(client) as consumer, client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        await process(transaction, consumer, 1)
        cluster.faults.lost["end_transaction"] = 1000
        with pytest.raises(errors.TransactionOutcomeUnknown):
            await transaction.commit()
        cluster.faults.lost.clear()
        with pytest.raises(errors.TransactionError):
            await consumer.commit({TopicPartition("t", 0): 1})
        async with transactions.begin() as again:
            await process(again, consumer, 1)
    assert cluster.visible == {1: [b"A", b"B"]}
    assert cluster.committed[0] == 2


@with_transactions
async def test_a_consumer_that_commits_by_itself_is_refused(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.log[0] = [b"a"]
    async with client.transactions("billing-7") as transactions, transactions.begin() as transaction:
        for settings in ({}, {"commit": "acked"}, {"commit": "manual", "broadcast": True}):
            consumer = client.consumer("t", group="g", **settings)
            with pytest.raises(errors.InvalidConfig):
                await transaction.send_offsets(consumer, [])


@with_transactions
async def test_what_is_no_consumer_of_a_group_and_no_message_of_it_is_refused(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    not_of_a_group: Any
    async with member(client) as consumer, client.transactions("billing-7") as transactions:
        for not_of_a_group in (client.consumer("t"), "consumer", 5):
            with pytest.raises(errors.InvalidConfig, match="a consumer with a group, not"):
                transactions.begin(reading=not_of_a_group)
            async with transactions.begin() as transaction:
                with pytest.raises(errors.InvalidConfig, match="a consumer with a group, not"):
                    await transaction.send_offsets(not_of_a_group, [])
                transaction.send("t", b"a")
        async with transactions.begin() as transaction:
            what: Any = "message"
            with pytest.raises(errors.InvalidRequest, match=r"send_offsets\(\) takes messages of this group, not str"):
                await transaction.send_offsets(consumer, what)

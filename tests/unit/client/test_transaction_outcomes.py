"""How a client's transactions end: outcomes that are not known, cancelled ends, fences, what comes too late."""

from __future__ import annotations

import asyncio

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.unit.client.transaction_broker import TransactionCluster
from tests.unit.client.transaction_clients import now_s, with_transactions
from tests.waiting import until


@with_transactions
async def test_what_the_cluster_has_aborted_is_not_committed(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        await transaction.send("t", b"a", partition=0)
        cluster.decide(pb.ABORTED)
        with pytest.raises(errors.TransactionAborted):
            await transaction.commit()
        assert transaction.state == "aborted"
        async with transactions.begin() as again:
            assert again.number == 2
            again.send("t", b"b", partition=0)
    assert cluster.visible == {0: [b"b"]}


@with_transactions
async def test_the_next_commit_waits_until_the_one_before_is_complete(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        for value in (b"a", b"b"):
            async with transactions.begin() as transaction:
                transaction.send("t", value, partition=0)
            cluster.incomplete = 3
    assert cluster.visible == {0: [b"a", b"b"]}


# -- an unknown outcome


@pytest.mark.parametrize("committed", [True, False])
def test_the_next_transaction_begins_when_the_outcome_of_the_one_before_is_known(committed: bool) -> None:
    @with_transactions
    async def run(cluster: TransactionCluster, client: ledgermq.Client) -> None:
        if committed:
            cluster.faults.lost["end_transaction"] = 1000
        async with client.transactions("billing-7") as transactions:
            transaction = transactions.begin()
            await transaction.start()
            await transaction.send("t", b"a", partition=0)
            if not committed:
                cluster.faults.silent.add("end_transaction")
            with pytest.raises(errors.TransactionOutcomeUnknown, match="number=1"):
                await transaction.commit()
            assert transaction.state == "unknown"
            cluster.faults.lost.clear()
            cluster.faults.silent.clear()
            async with transactions.begin() as again:
                again.send("t", b"b", partition=0)
            assert transaction.state == ("committed" if committed else "aborted")
        assert cluster.visible == {0: [b"a", b"b"] if committed else [b"b"]}
        assert cluster.calls.count("transaction_outcome") == 1
        assert await client.transactions.outcome("billing-7") == ("committed", True)

    run()


@with_transactions
async def test_an_unknown_outcome_takes_no_longer_than_the_deadline(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        await transaction.send("t", b"a", partition=0)
        cluster.faults.silent.add("end_transaction")
        begun = now_s()
        with pytest.raises(errors.TransactionOutcomeUnknown):
            await transaction.commit(timeout_s=4)
        assert now_s() - begun <= 4.1
        with pytest.raises(errors.TransactionError):
            await transaction.abort()
        assert len(cluster.ends) == 0


@with_transactions
async def test_a_commit_that_is_cancelled_is_unknown_until_the_next_transaction(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        await transaction.send("t", b"a", partition=0)
        cluster.faults.silent.add("end_transaction")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await transaction.commit()
        assert transaction.state == "unknown"
        cluster.faults.silent.clear()
        async with transactions.begin():
            assert transaction.state == "aborted"


@with_transactions
async def test_a_commit_that_is_cancelled_while_records_are_on_their_way_aborts(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        cluster.faults.silent.add("stage")
        transaction = transactions.begin()

        async def late() -> None:
            async with asyncio.timeout(1), transaction:
                transaction.send("t", b"a", partition=0)

        with pytest.raises(TimeoutError):
            await late()
        assert transaction.state == "aborted"
        cluster.faults.silent.clear()
        async with transactions.begin() as again:
            again.send("t", b"b", partition=1)
    assert cluster.visible == {1: [b"b"]}


@with_transactions
async def test_an_abort_without_answer_is_confirmed_before_the_next_number_is_used(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        await transaction.send("t", b"a", partition=0)
        cluster.faults.silent.add("end_transaction")
        await transaction.abort(timeout_s=3)
        assert transaction.state == "aborted"
        cluster.faults.silent.clear()
        async with transactions.begin() as again:
            assert again.number == 2
            again.send("t", b"b", partition=0)
    assert cluster.visible == {0: [b"b"]}


# -- fencing


@with_transactions
async def test_another_process_with_the_id_fences_this_one(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as old:
        transaction = old.begin()
        await transaction.start()
        await transaction.send("t", b"old", partition=0)
        async with client.transactions("billing-7") as new:
            assert (old.epoch, new.epoch) == (1, 2)
            with pytest.raises(errors.TransactionFenced):
                await transaction.commit()
            with pytest.raises(errors.TransactionFenced):
                old.begin()
            async with new.begin() as other:
                other.send("t", b"new", partition=0)
    assert cluster.visible == {0: [b"new"]}


@with_transactions
async def test_fenced_after_a_commit_without_answer_is_unknown(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        await transaction.send("t", b"a", partition=0)
        cluster.faults.lost["end_transaction"] = 1
        committing = asyncio.create_task(transaction.commit())
        await until(lambda: cluster.ends)
        cluster.init()
        with pytest.raises(errors.TransactionOutcomeUnknown):
            await committing
        assert cluster.visible == {0: [b"a"]}, "it was committed: 'fenced' alone would be a lie"
        with pytest.raises(errors.TransactionFenced):
            transactions.begin()


@with_transactions
async def test_init_waits_for_the_completion_of_the_epoch_before(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.incomplete = 4
    async with client.transactions("billing-7") as transactions:
        assert transactions.epoch == 1
        assert transactions.timeout_s == 60


# -- use


@with_transactions
async def test_one_transaction_is_open_at_a_time(cluster: TransactionCluster, client: ledgermq.Client) -> None:
    async with client.transactions("billing-7") as transactions:
        beside = transactions.begin()
        async with transactions.begin():
            with pytest.raises(errors.TransactionError, match="open"):
                transactions.begin()
            with pytest.raises(errors.TransactionError, match="open"):
                await beside.start()
        await beside.start()
        await beside.commit()


@with_transactions
async def test_a_transaction_that_has_ended_takes_nothing(cluster: TransactionCluster, client: ledgermq.Client) -> None:
    async with client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        with pytest.raises(errors.TransactionError, match="async with"):
            transaction.send("t", b"a")
        async with transaction:
            await transaction.commit()
            with pytest.raises(errors.TransactionError):
                transaction.send("t", b"a")
        with pytest.raises(errors.TransactionError):
            await transaction.commit()


@with_transactions
async def test_closing_aborts_what_is_open(cluster: TransactionCluster, client: ledgermq.Client) -> None:
    transactions = client.transactions("billing-7")
    await transactions.init()
    transaction = transactions.begin()
    await transaction.start()
    await transaction.send("t", b"a", partition=0)
    await client.close()
    assert [end.outcome for end in cluster.ends] == [pb.ABORTED]
    assert transaction.state == "aborted"
    with pytest.raises(errors.Closed):
        transactions.begin()


@with_transactions
async def test_an_abort_does_not_wait_for_records_on_their_way(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        cluster.faults.silent.add("stage")
        delivery = transaction.send("t", b"a", partition=0)
        waiting = transaction.send("elsewhere", b"b")
        await asyncio.sleep(0.1)
        begun = now_s()
        await transaction.abort()
        assert now_s() - begun < 1
        for each in (delivery, waiting):
            with pytest.raises(errors.LedgerMQError):
                await each
        cluster.faults.silent.clear()
        async with transactions.begin() as again:
            again.send("t", b"c", partition=1)
    assert cluster.visible == {1: [b"c"]}


# -- calls of other tasks that still add records


@with_transactions
async def test_a_commit_waits_for_records_that_another_task_is_adding(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    values = [b"%d" % number for number in range(10_000)]
    async with client.transactions("billing-7") as transactions:
        async with transactions.begin() as transaction:
            adding = asyncio.create_task(transaction.send_many("t", [ledgermq.Record(v, partition=0) for v in values]))
            await asyncio.sleep(0)
        async with transactions.begin() as second:
            second.send("t", b"second", partition=0)
        assert len(await adding) == len(values)
    assert cluster.visible == {0: [*values, b"second"]}


@with_transactions
async def test_records_of_an_aborted_transaction_never_join_the_next_one(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    """Whether the call that adds them waits its turn or for room."""
    async with client.transactions("billing-7", buffer_bytes_max=2_000_000) as transactions:
        for records in (10_000, 1_000):
            first = transactions.begin()
            await first.start()
            value = b"x" * (2_000_000 // records)
            many = [ledgermq.Record(value, partition=0)] * (2 * records)
            adding = asyncio.create_task(first.send_many("t", many))
            for _ in range(3):
                await asyncio.sleep(0)
            await first.abort()
            async with transactions.begin() as second:
                second.send("t", b"second", partition=0)
                await asyncio.sleep(1)
            with pytest.raises(errors.TransactionAborted):
                await adding
    assert cluster.visible == {0: [b"second"] * 2}

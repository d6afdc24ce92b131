"""Check what a client's transactions send, against a small cluster in memory: records, commits, aborts, faults."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.unit.client.transaction_broker import TransactionCluster, sequences
from tests.unit.client.transaction_clients import now_s, with_transactions
from tests.virtual_time import EPOCH_US

SECOND_US = 1_000_000


# -- commit and abort


@with_transactions
async def test_what_is_sent_is_visible_after_the_commit_and_not_before(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7", timeout="1m") as transactions:
        async with transactions.begin() as transaction:
            first = transaction.send("t", b"a", partition=0)
            await transaction.send_many("t", [ledgermq.Record(b"b", partition=1), ledgermq.Record(b"c", partition=1)])
            await transaction.flush()
            assert cluster.visible == {}
            result = await first
            assert (result.topic, result.partition, result.offset) == ("t", 0, None)
        assert cluster.visible == {0: [b"a"], 1: [b"b", b"c"]}
        assert transaction.state == "committed"
    (end,) = cluster.ends
    assert (end.transaction.epoch, end.transaction.number, end.outcome) == (1, 1, pb.COMMITTED)
    assert [part.bundle for part in end.parts] == [1, 2]


@with_transactions
async def test_an_exception_aborts_and_nothing_is_visible(cluster: TransactionCluster, client: ledgermq.Client) -> None:
    async with client.transactions("billing-7") as transactions:
        transaction = transactions.begin()

        async def fail() -> None:
            async with transaction:
                await transaction.send("t", b"a", partition=0)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert transaction.state == "aborted"
    (end,) = cluster.ends
    assert end.outcome == pb.ABORTED
    assert [part.bundle for part in end.parts] == [1], "the bundle drops it at once"
    assert cluster.visible == {}


@with_transactions
async def test_begin_and_an_empty_transaction_cost_no_request(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        for _ in range(3):
            async with transactions.begin():
                pass
        with pytest.raises(ZeroDivisionError):
            async with transactions.begin():
                raise ZeroDivisionError
        assert cluster.calls == ["init_transactions"]
        async with transactions.begin() as transaction:
            transaction.send("t", b"a", partition=0)
        assert transaction.number == 1, "a number that was never sent is used again"


@with_transactions
async def test_sequences_count_batches_of_each_partition_from_0_in_each_transaction(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        for _ in range(2):
            async with transactions.begin() as transaction:
                transaction.send("t", b"a", partition=0)
                for value in (b"b", b"c", b"d"):
                    await transaction.send("t", value, partition=0)
                await transaction.send("t", b"e", partition=1)
    expected = [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert sequences(cluster) == [(number, *at) for number in (1, 2) for at in expected]
    assert cluster.visible == {0: [b"a", b"b", b"c", b"d"] * 2, 1: [b"e", b"e"]}


@with_transactions
async def test_rows_of_an_arrow_batch_are_staged(cluster: TransactionCluster, client: ledgermq.Client) -> None:
    import pyarrow as pa

    async with client.transactions("billing-7") as transactions, transactions.begin() as transaction:
        rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
        (stored,) = await (await transaction.send_batch("t", rows, partition=0))
        assert (stored.base_offset, stored.record_count) == (None, 2)
    assert cluster.visible == {0: [b"a", b"b"]}


# -- delayed records


@with_transactions
async def test_delayed_records_are_staged_apart_and_wait_after_the_commit(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.now_us = EPOCH_US + 3600 * SECOND_US
    due = datetime(2026, 1, 1, tzinfo=UTC)
    async with client.transactions("billing-7") as transactions:
        async with transactions.begin() as transaction:
            delivery = transaction.send("t", b"delay", partition=0, delay=5)
            transaction.send("t", b"now", partition=0)
            await transaction.send_many("t", [ledgermq.Record(b"level", partition=1, delay_level=2)])
            transaction.send("t", b"at", partition=0, deliver_at=due)
            result = await delivery
            assert (result.offset, result.handle) == (None, None), "it has no place before the commit"
        assert cluster.visible == {0: [b"now"]}
        delayed, at = cluster.waiting[0]
        assert delayed[0] == b"delay"
        assert result.timestamp_us == delayed[1]
        assert abs(delayed[1] - cluster.now_us - 5 * SECOND_US) < SECOND_US, "by the brokers' clock"
        assert at == (b"at", int(due.timestamp()) * SECOND_US)
        assert [value for value, _ in cluster.waiting[1]] == [b"level"]
    (end,) = cluster.ends
    assert [part.bundle for part in end.parts] == [1, 2], "one part for each bundle"


@with_transactions
async def test_delayed_records_are_numbered_apart_in_each_transaction_and_dropped_by_an_abort(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        for number in range(4):
            transaction = transactions.begin()
            await transaction.start()
            for value in (b"a", b"b"):
                await transaction.send("t", value + b"%d" % number, partition=0, delay=5)
            await transaction.send("t", b"now%d" % number, partition=0)
            transaction.send("t", b"unanswered", partition=1, delay=5)
            await (transaction.abort() if number % 2 else transaction.commit())
    sent = [
        (header.transaction.number, header.branch, staged.sequence)
        for header in cluster.stages
        for staged in header.batches
        if staged.batch.partition == 0
    ]
    expected = [(b"/delayed", 0), (b"/delayed", 1), (b"", 0)]
    assert sent == [(number, *at) for number in (1, 2, 3, 4) for at in expected]
    assert [value for value, _ in cluster.waiting[0]] == [b"a0", b"b0", b"a2", b"b2"]
    assert [value for value, _ in cluster.waiting[1]] == [b"unanswered"] * 2
    assert cluster.visible == {0: [b"now0", b"now2"]}


@with_transactions
async def test_a_broker_that_does_not_know_delays_in_transactions_makes_the_transaction_abort(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    cluster.faults.refused["stage_delayed"] = [errors.InvalidRequest("method StageDelayed is not known")]
    async with client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        await transaction.send("t", b"now", partition=0)
        with pytest.raises(errors.InvalidRequest, match="not known"):
            await transaction.send("t", b"later", partition=0, delay=5)
        with pytest.raises(errors.InvalidRequest, match="not known"):
            await transaction.commit()
    assert [end.outcome for end in cluster.ends] == [pb.ABORTED]
    assert cluster.visible == {}


# -- faults


@pytest.mark.parametrize("method", ["init_transactions", "stage", "stage_delayed", "end_transaction"])
@pytest.mark.parametrize("fault", ["lost", "doubled", "refused"])
def test_a_fault_of_a_call_changes_nothing(method: str, fault: str) -> None:
    @with_transactions
    async def run(cluster: TransactionCluster, client: ledgermq.Client) -> None:
        if fault == "refused":
            cluster.faults.refused[method] = [errors.Unavailable("not now"), errors.ResourceExhausted("busy")]
        else:
            getattr(cluster.faults, fault)[method] = 2
        async with client.transactions("billing-7") as transactions:
            for value in (b"a", b"b", b"c"):
                async with transactions.begin() as transaction:
                    transaction.send("t", value, partition=0)
                    transaction.send("t", value, partition=1)
                    transaction.send("t", value, partition=1, delay=5)
        assert cluster.visible == {0: [b"a", b"b", b"c"], 1: [b"a", b"b", b"c"]}
        assert [value for value, _ in cluster.waiting[1]] == [b"a", b"b", b"c"]

    run()


@with_transactions
async def test_owners_and_coordinators_that_move_are_found(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        async with transactions.begin() as transaction:
            await transaction.send("t", b"a", partition=0)
            cluster.move_everything()
            await transaction.send("t", b"b", partition=0)
            await transaction.send("t", b"c", partition=1)
            cluster.move_everything()
        cluster.move_everything()
        async with transactions.begin() as transaction:
            transaction.send("t", b"d", partition=0)
    assert cluster.visible == {0: [b"a", b"b", b"d"], 1: [b"c"]}


@with_transactions
async def test_a_batch_behind_a_lost_one_is_a_gap_and_is_sent_again_under_its_sequence(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7", linger_ms=0) as transactions, transactions.begin() as transaction:
        await transaction.send("t", b"a", partition=0)
        cluster.faults.refused["stage"] = [errors.Unavailable("the line was lost")]
        for value in (b"b", b"c"):
            transaction.send("t", value, partition=0)
            await asyncio.sleep(0.001)
    assert cluster.visible == {0: [b"a", b"b", b"c"]}
    assert max(sequence for _, _, sequence in sequences(cluster)) == 2


@with_transactions
async def test_a_batch_without_answer_at_its_deadline_makes_the_transaction_abort_only(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7", delivery_timeout_s=5, request_timeout_s=2) as transactions:
        transaction = transactions.begin()
        await transaction.start()
        await transaction.send("t", b"a", partition=0)
        cluster.faults.silent.add("stage")
        with pytest.raises(errors.TransactionAborted, match="run it again"):
            await transaction.send("t", b"b", partition=0)
        cluster.faults.silent.clear()
        with pytest.raises(errors.TransactionAborted):
            transaction.send("t", b"c", partition=1)
        with pytest.raises(errors.TransactionAborted):
            await transaction.commit()
        assert transaction.state == "aborted"
        assert [end.outcome for end in cluster.ends] == [pb.ABORTED]
        async with transactions.begin() as again:
            again.send("t", b"d", partition=0)
    assert cluster.visible == {0: [b"d"]}
    assert all(sequence < 2 for number, _, sequence in sequences(cluster) if number == 1), "never renumbered"


@with_transactions
async def test_a_failure_that_nobody_awaited_is_not_committed(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        transaction.send("t", b"a", partition=0)
        transaction.send("nowhere", b"b")
        with pytest.raises(errors.UnknownTopic):
            await transaction.commit()
        assert transaction.state == "aborted"
        async with transactions.begin() as again:
            again.send("t", b"c", partition=0)
    assert cluster.visible == {0: [b"c"]}


@with_transactions
async def test_a_failure_ends_the_transaction_though_other_records_have_no_answer(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        cluster.faults.silent.add("stage")
        delivery = transaction.send("t", b"a", partition=0)
        transaction.send("nowhere", b"b")
        begun = now_s()
        with pytest.raises(errors.UnknownTopic):
            await transaction.commit()
        assert now_s() - begun < 3
        assert delivery.done()


@with_transactions
async def test_a_topic_that_is_still_looked_up_at_an_abort_is_found_by_the_next_transaction(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        cluster.faults.silent.add("describe_topics")
        transaction = transactions.begin()
        await transaction.start()
        delivery = transaction.send("t", b"a", partition=0)
        await asyncio.sleep(0.1)
        await transaction.abort()
        with pytest.raises(errors.TransactionAborted):
            await delivery
        async with transactions.begin() as again:
            again.send("t", b"b", partition=0)
            await asyncio.sleep(0.1)
            cluster.faults.silent.clear()
            await again.flush(5)
    assert cluster.visible == {0: [b"b"]}


@with_transactions
async def test_a_record_that_is_refused_at_once_does_not_end_the_transaction(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions, transactions.begin() as transaction:
        await transaction.send("t", b"a", partition=0)
        with pytest.raises(errors.UnknownPartition):
            transaction.send("t", b"b", partition=99)
    assert cluster.visible == {0: [b"a"]}


@with_transactions
async def test_a_bound_of_the_transaction_says_that_running_it_again_does_not_help(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async with client.transactions("billing-7") as transactions:
        cluster.faults.refused["stage"] = [errors.TransactionTooLarge("split the work")]
        with pytest.raises(errors.TransactionTooLarge):
            async with transactions.begin() as transaction:
                transaction.send("t", b"a", partition=0)
        assert [end.outcome for end in cluster.ends] == [pb.ABORTED]


@with_transactions
async def test_settings_that_have_no_meaning_are_refused(cluster: TransactionCluster, client: ledgermq.Client) -> None:
    for settings in ({"acks": "received"}, {"idempotent": False}, {"timeout": "soon"}, {"timeout": 0}):
        with pytest.raises(errors.InvalidRequest):
            client.transactions("billing-7", **settings)  # type: ignore[arg-type]
    for name in ("", "a b", "x" * 250):
        with pytest.raises(errors.InvalidRequest):
            client.transactions(name)

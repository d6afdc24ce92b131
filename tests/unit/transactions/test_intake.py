"""Check which batches a bundle stages; names of tests cite the rules X of the design page."""

from __future__ import annotations

import pytest

from ledgermq.errors import (
    InvalidRequest,
    LedgerMQError,
    OutOfOrderSequence,
    ResourceExhausted,
    TransactionAborted,
    TransactionTooLarge,
)
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_broker.transactions.state.participating.completing import Completion
from ledgermq_broker.transactions.state.types import Part, State
from tests.unit.transactions.desks import NOW, TX, B, Bundle, batch, nxt


def test_batches_of_one_call_are_one_record(bundle: Bundle) -> None:
    staging = bundle.do(bundle.intake.stage(TX, b"", [batch(0), batch(1), batch(0, partition=1)], 40, NOW))
    assert staging == ([None, None, None], [0, 1, 2])
    assert len(bundle.refs()) == 1
    assert (bundle.participant.open_count, bundle.participant.staged_batches) == (1, 3)
    assert bundle.participant.staged_bytes == 300
    assert bundle.participant.lowest_offset() == 40
    [info] = bundle.participant.staged_infos()
    assert (info.transaction.transactional_id, info.batches, info.bytes, info.oldest_ms) == ("t", 3, 300, NOW)


def test_a_call_under_another_id_drops_nothing_and_leaves_no_note(bundle: Bundle) -> None:
    """One that names the producer id of a transaction beside another transactional id."""
    bundle.stage(batch(0))
    false = TX._replace(transactional_id="mine")
    assert bundle.intake.other_id(false) == TX.transactional_id
    assert bundle.intake.other_id(TX) is None
    for transaction in (false, false._replace(number=7)):
        assert bundle.complete(State.ABORTED, Part(2), transaction=transaction) is Completion.DONE
    assert bundle.participant.staged_batches == 1
    bundle.commit(1)
    with pytest.raises(InvalidRequest, match="another transactional id"):
        bundle.stage(batch(0), transaction=false._replace(number=2))
    for number in (1, 2):
        bundle.complete(State.ABORTED, Part(2), transaction=false._replace(number=number))
    bundle.take_over()
    assert bundle.stage(batch(0), transaction=TX._replace(number=2)) == [None]


def test_x13_a_gap_is_out_of_order_and_a_batch_behind_it_too(bundle: Bundle) -> None:
    gap, behind, other = bundle.stage(batch(1), batch(2), batch(0, partition=1))
    assert isinstance(gap, OutOfOrderSequence)
    assert "batch 0 is missing" in str(gap)
    assert isinstance(behind, OutOfOrderSequence)
    assert other is None
    assert bundle.stage(batch(0), batch(1), batch(2)) == [None, None, None]


def test_x13_a_duplicate_is_the_same_batch_and_anything_else_a_conflict(bundle: Bundle) -> None:
    bundle.stage(batch(0))
    assert bundle.silent(bundle.intake.stage(TX, b"", [batch(0)], bundle.end, NOW)) == ([None], [])
    for other in (batch(0, crc=9), batch(0, records=3), batch(0, length=99)):
        [error] = bundle.stage(other)
        assert isinstance(error, TransactionAborted)
    [stored, twice, conflict] = bundle.stage(batch(1), batch(1), batch(1, crc=9))
    assert (stored, twice) == (None, None)
    assert isinstance(conflict, TransactionAborted)


def test_branches_partitions_and_transactions_count_apart(bundle: Bundle) -> None:
    assert bundle.stage(batch(0)) == [None]
    assert bundle.stage(batch(0, crc=5), branch=b"x") == [None]
    assert bundle.stage(batch(0, crc=6), transaction=nxt(TX)) == [None]
    assert bundle.stage(batch(0, crc=7), transaction=TX._replace(producer_id=B)) == [None]
    assert bundle.participant.open_count == 3
    with pytest.raises(InvalidRequest, match="branch"):
        bundle.stage(batch(0), branch=b"x" * 33)


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        (TransactionLimits(batches_max=2), TransactionTooLarge),
        (TransactionLimits(bytes_max=299), TransactionTooLarge),
        (TransactionLimits(staged_bytes_max=299), ResourceExhausted),
        (TransactionLimits(staged_batches_max=2), ResourceExhausted),
    ],
)
def test_what_a_transaction_and_a_bundle_hold_is_bounded(limits: TransactionLimits, kind: type[LedgerMQError]) -> None:
    bundle = Bundle(limits)
    bundle.stage(batch(0))
    [stored, refused] = bundle.stage(batch(1), batch(2))
    assert stored is None
    assert isinstance(refused, kind)
    assert bundle.stage(batch(0)) == [None]


def test_a_transaction_of_small_batches_is_bounded_by_its_bytes() -> None:
    """Java clients of the Kafka protocol send 16 KiB. A program that reached a bound of batches would abort, begin
    again where it was, and reach it again (H12).
    """
    bundle, size, sent = Bundle(TransactionLimits()), 16 * 1024, 0
    while True:
        coming = [batch(sent + n, length=size) for n in range(1024)]
        staging = bundle.do(bundle.intake.stage(TX, b"", coming, bundle.end, NOW, principal=7))
        if staging.results[0] is not None:
            break
        assert staging.results == [None] * 1024
        bundle.end += sum(each.record_count for each in coming)
        sent += 1024
    refused = staging.results[0]
    assert isinstance(refused, TransactionTooLarge)
    assert "bytes" in refused.message
    assert sent * size == bundle.limits.bytes_max
    bundle.take_over()
    assert bundle.participant.staged_batches == sent
    bundle.commit(sent)
    assert bundle.participant.staged_batches == 0


def test_batches_of_a_bundle_are_bounded_over_all_its_transactions() -> None:
    """Each is a reference in the owner's memory, however small it is: 8 GiB of them were millions."""
    bundle = Bundle(TransactionLimits(staged_batches_max=3))
    other = TX._replace(producer_id=B)
    assert bundle.stage(batch(0), batch(1)) == [None, None]
    [stored, refused] = bundle.stage(batch(0), batch(1), transaction=other)
    assert stored is None
    assert isinstance(refused, ResourceExhausted)
    assert refused.retry_after_ms
    assert bundle.stage(batch(0), batch(1)) == [None, None], "what is stored is not refused"
    assert bundle.complete(State.ABORTED, Part(2)) is Completion.DONE
    assert bundle.stage(batch(1), transaction=other) == [None]


def test_open_transactions_are_bounded() -> None:
    bundle = Bundle(TransactionLimits(open_max=1))
    bundle.stage(batch(0))
    assert bundle.stage(batch(1)) == [None]
    [error] = bundle.stage(batch(0), transaction=nxt(TX))
    assert isinstance(error, ResourceExhausted)
    assert error.retry_after_ms

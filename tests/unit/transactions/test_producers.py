"""Check what a coordinator decides for producers: identities, outcomes, two phases.

Names of tests cite the rules X of the design page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ledgermq.errors import (
    InvalidRequest,
    ResourceExhausted,
    TransactionAborted,
    TransactionFenced,
    TransactionUnknown,
    Unavailable,
)
from ledgermq_broker.transactions.state.coordinating.producers import Identity
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_broker.transactions.state.records import encode
from ledgermq_broker.transactions.state.types import Kind, Part, State, Stream, Transaction
from tests.unit.transactions.desks import DAY, NOW, OTHER, PART, STREAM, Desk, nxt

TOO_MANY = TransactionLimits().batches_max + 1

# Identity


def test_each_init_keeps_the_producer_and_begins_the_next_epoch(desk: Desk) -> None:
    first, second = desk.init(), desk.init()
    assert first == ("t", 5, b"\x01" * 16, 1, 1)
    assert (second.producer_id, second.epoch) == (first.producer_id, 2)
    assert desk.init("u").producer_id != first.producer_id


def test_the_holder_of_an_older_epoch_is_fenced(desk: Desk) -> None:
    old = desk.init()
    desk.init()
    with pytest.raises(TransactionFenced, match="epoch 2"):
        desk.end(old, State.COMMITTED, PART)


def test_an_unknown_id_is_unknown_and_another_producer_is_fenced(desk: Desk) -> None:
    transaction = Transaction("t", 5, b"x" * 16, 1, 1)
    with pytest.raises(TransactionUnknown, match="initialize it again"):
        desk.end(transaction, State.COMMITTED)
    desk.init()
    with pytest.raises(TransactionFenced):
        desk.end(transaction, State.COMMITTED)


def test_a_time_out_above_the_maximum_is_refused(desk: Desk) -> None:
    assert desk.do(desk.producers.init("t", Kind.ORDINARY, 900_000, "", NOW)).timeout_ms == 900_000
    assert desk.do(desk.producers.init("t", Kind.ORDINARY, 0, "", NOW)).timeout_ms == 60_000
    with pytest.raises(InvalidRequest, match="at most 900000 ms, not 900001"):
        desk.producers.init("t", Kind.ORDINARY, 900_001, "", NOW)


@pytest.mark.parametrize(
    ("name", "kind", "group"),
    [("a/b", Kind.ORDINARY, ""), ("t", Kind.HALF_MESSAGE, ""), ("t", Kind.ORDINARY, "g"), ("", Kind.ORDINARY, "")],
)
def test_an_init_that_makes_no_sense_is_refused(desk: Desk, name: str, kind: Kind, group: str) -> None:
    with pytest.raises(InvalidRequest):
        desk.producers.init(name, kind, 0, group, NOW)
    assert desk.coordinator.size == 0


def test_an_id_keeps_its_kind(desk: Desk) -> None:
    desk.init()
    with pytest.raises(InvalidRequest, match="kind ORDINARY, not TWO_PHASE"):
        desk.init(kind=Kind.TWO_PHASE)


def test_there_is_a_bound_of_ids() -> None:
    desk = Desk(TransactionLimits(ids_max=1))
    desk.init()
    with pytest.raises(ResourceExhausted, match="1 transactional ids"):
        desk.init("u")
    desk.init()


# Decisions


def test_a_commit_is_told_to_its_bundles_until_all_have_said_done(desk: Desk) -> None:
    transaction = desk.init()
    assert desk.end(transaction, State.COMMITTED, OTHER, PART) is State.COMMITTED
    assert desk.told() == [("t", 1, State.COMMITTED, 2), ("t", 1, State.COMMITTED, 3)]
    desk.completed(transaction, 2)
    desk.take_over()
    assert desk.told() == [("t", 1, State.COMMITTED, 3)]
    desk.completed(transaction, 2, 3)
    assert desk.told() == []
    assert desk.operators.describe("t").complete
    desk.take_over()


def test_an_empty_commit_is_complete_at_once(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED)
    assert desk.told() == []
    desk.end(nxt(transaction), State.COMMITTED)


def test_an_abort_is_told_too_without_counts(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.ABORTED, PART, OTHER)
    [(_, state, first), (_, _, second)] = desk.bundles.to_complete()
    assert (state, first, second) == (State.ABORTED, Part(2), Part(3, {}, ("g",)))


def test_a_repeated_call_gets_the_same_answer(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED, PART)
    assert desk.silent(desk.producers.end(transaction, State.COMMITTED, [PART], NOW)) is State.COMMITTED
    assert desk.silent(desk.producers.end(transaction, State.ABORTED, [], NOW)) is State.COMMITTED
    desk.completed(transaction, 2)
    desk.end(nxt(transaction), State.ABORTED)
    assert desk.silent(desk.producers.end(nxt(transaction), State.ABORTED, [], NOW)) is State.ABORTED
    with pytest.raises(TransactionAborted, match="in a new transaction"):
        desk.end(nxt(transaction), State.COMMITTED, PART)


def test_what_is_over_is_fenced_and_what_is_far_ahead_refused(desk: Desk) -> None:
    first = desk.init()
    desk.end(first, State.COMMITTED)
    desk.end(nxt(first), State.COMMITTED)
    with pytest.raises(TransactionFenced, match="is over"):
        desk.end(first, State.COMMITTED)
    with pytest.raises(InvalidRequest, match="the next one, which is 3"):
        desk.end(first._replace(number=4), State.COMMITTED)


@pytest.mark.parametrize(
    ("transaction", "outcome", "parts"),
    [
        (Transaction("t", 5, b"\x01" * 16, 1, 1), State.UNRESOLVED, []),
        (Transaction("t", 5, b"\x01" * 16, 1, 1), State.COMMITTED, [PART, PART]),
        (Transaction("t", 5, b"\x01" * 16, 1, 1), State.COMMITTED, [Part(2, {STREAM: TOO_MANY})]),
        (Transaction("t", 5, b"\x01" * 16, 1, 1), State.COMMITTED, [Part(2, {Stream(b"x" * 33, 7, 0): 1})]),
        (Transaction("t", 5, b"\x01" * 16, 1, 1), State.COMMITTED, [Part(2, {}, ("a/b",))]),
        (Transaction("t", 5, b"\x01" * 16, 1, 0), State.COMMITTED, []),
        (Transaction("t", 5, b"\x01" * 15, 1, 1), State.COMMITTED, []),
        (Transaction("t", 5, b"", 0, 0), State.COMMITTED, []),
        (Transaction("t", 5, b"\x01" * 16, 1, 1), State.PREPARED, []),
    ],
)
def test_a_decision_that_makes_no_sense_changes_nothing(
    desk: Desk, transaction: Transaction, outcome: State, parts: Sequence[Part]
) -> None:
    desk.init()
    before = desk.coordinator.entries()
    with pytest.raises(InvalidRequest):
        desk.producers.end(transaction, outcome, parts, NOW)
    assert desk.coordinator.entries() == before


def test_x6_the_next_transaction_is_decided_when_the_last_one_is_complete(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.ABORTED, PART)
    desk.bundles.trouble(transaction, 2, "bundle 2 has no owner")
    with pytest.raises(Unavailable, match=r"not complete .*bundle 2 has no owner") as caught:
        desk.end(nxt(transaction), State.COMMITTED, PART)
    assert caught.value.retry_after_ms
    desk.completed(transaction, 2)
    desk.end(nxt(transaction), State.COMMITTED, PART)


def test_x6_a_new_epoch_waits_for_commits_but_not_for_aborts(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.ABORTED, PART)
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED, PART)
    with pytest.raises(Unavailable, match="not complete"):
        desk.init()
    desk.completed(transaction, 2)
    assert desk.init().epoch == 3


def test_a_late_done_of_another_transaction_counts_for_nothing(desk: Desk) -> None:
    first = desk.init()
    desk.end(first, State.COMMITTED, PART)
    desk.completed(first, 2)
    desk.end(nxt(first), State.COMMITTED, PART)
    desk.silent(desk.bundles.completed(first, 2, NOW))
    desk.silent(desk.bundles.completed(nxt(first), 9, NOW))
    assert desk.told() == [("t", 2, State.COMMITTED, 2)]


# Two phases


def test_x9_an_id_of_two_phases_is_used_once(desk: Desk) -> None:
    desk.init("x", Kind.TWO_PHASE)
    transaction = desk.init("x", Kind.TWO_PHASE)  # the answer was lost; nothing is decided
    assert transaction.epoch == 1  # what is staged under it stays part of it
    desk.end(transaction, State.PREPARED, PART)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="use a new id"):
            desk.init("x", Kind.TWO_PHASE)
        desk.end(transaction, State.COMMITTED)
    desk.completed(transaction, 2)
    with pytest.raises(InvalidRequest, match="names one transaction"):
        desk.end(nxt(transaction), State.COMMITTED)


def test_x9_an_id_of_two_phases_belongs_to_the_object_that_began_it(desk: Desk) -> None:
    """Another program with the same id would be told what became of the first one's transaction."""

    def begin(nonce: bytes) -> Identity:
        return desk.do(desk.producers.init("x", Kind.TWO_PHASE, 0, "", NOW, nonce))

    first = begin(b"one")
    for _ in range(2):
        assert begin(b"one") == first  # its answer was lost, and the coordinator may be another one
        for other in (b"two", b""):
            with pytest.raises(InvalidRequest, match="another program has begun"):
                begin(other)
        desk.take_over()
    transaction = Transaction("x", first.coordinator, first.producer_id, first.epoch, 1)
    desk.end(transaction, State.PREPARED, PART)
    with pytest.raises(InvalidRequest, match="was used"):
        begin(b"one")
    with pytest.raises(InvalidRequest, match="at most 16 bytes"):
        begin(b"n" * 17)


def test_x9_a_half_message_belongs_to_the_call_that_began_it(desk: Desk) -> None:
    def begin(nonce: bytes) -> Identity:
        return desk.do(desk.producers.init("h", Kind.HALF_MESSAGE, 0, "checkers", NOW, nonce))

    assert begin(b"one") == begin(b"one")
    with pytest.raises(TransactionAborted, match="another call of send"):
        begin(b"two")


@pytest.mark.parametrize("ends", [(), (State.COMMITTED,)])
def test_x9_programs_without_nonces_are_told_apart_by_what_they_count(desk: Desk, ends: Sequence[State]) -> None:
    transaction = desk.init("x", Kind.TWO_PHASE)
    assert desk.init("x", Kind.TWO_PHASE, NOW) == transaction  # an earlier client: it may be a repetition
    desk.end(transaction, State.PREPARED, PART)
    for outcome in ends:
        desk.end(transaction, outcome)
        desk.completed(transaction, 2)  # the counts themselves go now
    desk.take_over()
    assert desk.silent(desk.producers.end(transaction, State.PREPARED, [PART], NOW)) is (ends or (State.PREPARED,))[0]
    for parts in ([replace(PART, counts={STREAM: 2})], [PART, Part(3, {STREAM: 1})], []):
        with pytest.raises(TransactionFenced, match="another program"):
            desk.producers.end(transaction, State.PREPARED, parts, NOW)


@pytest.mark.parametrize("kind", [Kind.TWO_PHASE, Kind.HALF_MESSAGE, Kind.ORDINARY])
def test_x9_a_commit_that_counts_other_batches_is_no_repetition(desk: Desk, kind: Kind) -> None:
    transaction = desk.init("x", kind)
    desk.end(transaction, State.COMMITTED, PART)
    for _ in range(2):
        assert desk.silent(desk.producers.end(transaction, State.COMMITTED, [PART], NOW)) is State.COMMITTED
        with pytest.raises(TransactionFenced, match="COMMITTED with other batches"):
            desk.producers.end(transaction, State.COMMITTED, [Part(2, {Stream(b"", 7, 2): 1})], NOW)
        desk.completed(transaction, 2)
        desk.take_over()


def test_an_id_of_an_earlier_release_is_not_compared(desk: Desk) -> None:
    transaction = desk.init("x", Kind.TWO_PHASE)
    desk.end(transaction, State.PREPARED, PART)
    [entry] = desk.coordinator.entries()
    assert entry.value is not None
    assert len(entry.value.counted) == 16
    [record] = [encode(replace(entry, value=replace(entry.value, counted=b"")))]
    desk.coordinator.apply(record.key, record.value)
    assert desk.silent(desk.producers.end(transaction, State.PREPARED, [Part(3)], NOW)) is State.PREPARED


def test_what_is_prepared_has_no_time_out_and_any_process_may_end_it(desk: Desk) -> None:
    transaction = desk.init("x", Kind.TWO_PHASE)
    assert desk.end(transaction, State.PREPARED, PART) is State.PREPARED
    assert desk.silent(desk.producers.end(transaction, State.PREPARED, [PART], NOW)) is State.PREPARED
    assert desk.told() == []
    desk.fate(transaction, NOW)
    assert desk.silent(desk.bundles.fate(transaction, PART, NOW + 30 * DAY)) is State.PREPARED
    assert desk.silent(desk.producers.outcome("x", 0, 0, NOW)) == (State.PREPARED, False)
    desk.take_over()
    assert desk.end(Transaction("x", 0, b"", 0, 0), State.COMMITTED) is State.COMMITTED
    assert desk.bundles.to_complete() == [(transaction, State.COMMITTED, PART)]
    assert desk.end(Transaction("x", 0, b"", 0, 0), State.COMMITTED) is State.COMMITTED


def test_what_is_prepared_may_be_rolled_back(desk: Desk) -> None:
    transaction = desk.init("x", Kind.TWO_PHASE)
    desk.end(transaction, State.PREPARED, PART)
    assert desk.end(Transaction("x", 0, b"", 0, 0), State.ABORTED) is State.ABORTED
    assert desk.bundles.to_complete() == [(transaction, State.ABORTED, Part(2))]
    with pytest.raises(TransactionAborted):
        desk.end(Transaction("x", 0, b"", 0, 0), State.COMMITTED)


def test_what_is_prepared_is_committed_with_its_own_counts(desk: Desk) -> None:
    transaction = desk.init("x", Kind.TWO_PHASE)
    desk.end(transaction, State.PREPARED, PART)
    with pytest.raises(InvalidRequest, match="other counts"):
        desk.end(transaction, State.COMMITTED, Part(2, {STREAM: 2}))
    desk.end(transaction, State.COMMITTED, PART)


def test_x14_a_transaction_with_offsets_is_not_prepared(desk: Desk) -> None:
    transaction = desk.init("x", Kind.TWO_PHASE)
    with pytest.raises(InvalidRequest, match="cannot be prepared"):
        desk.end(transaction, State.PREPARED, OTHER)


def test_x17_the_outcome_of_two_phases_aborts_what_is_not_prepared(desk: Desk) -> None:
    transaction = desk.init("x", Kind.TWO_PHASE)
    with pytest.raises(InvalidRequest, match="not prepared"):
        desk.end(Transaction("x", 0, b"", 0, 0), State.COMMITTED)
    assert desk.do(desk.producers.outcome("x", 0, 0, NOW)) == (State.ABORTED, True)
    with pytest.raises(TransactionAborted):
        desk.end(transaction, State.PREPARED, PART)

"""Check what operators decide, and how ids expire; names of tests cite the rules X of the design page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledgermq.errors import (
    InvalidRequest,
    LedgerMQError,
    TransactionAborted,
    Unavailable,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.transactions.state.limits import EPOCH_MAX, NUMBER_MAX
from ledgermq_broker.transactions.state.records import encode
from ledgermq_broker.transactions.state.types import Kind, Part, State, Transaction
from tests.unit.transactions.desks import DAY, NOW, OTHER, PART, Desk, half, nxt

# Operators


def test_an_operator_decides_what_is_prepared_until_it_is_forgotten(desk: Desk) -> None:
    transaction = desk.init("x", Kind.TWO_PHASE)
    desk.end(transaction, State.PREPARED, PART)
    info = desk.do(desk.operators.resolve("x", False, NOW))
    assert (info.state, list(info.missing)) == (pb.ABORTED_BY_OPERATOR, [2])
    assert desk.silent(desk.operators.resolve("x", False, NOW)) == info
    with pytest.raises(InvalidRequest, match="ABORTED_BY_OPERATOR"):
        desk.operators.resolve("x", True, NOW)
    assert desk.bundles.to_complete() == [(transaction, State.ABORTED, Part(2))]
    with pytest.raises(Unavailable):
        desk.operators.forget("x")
    desk.completed(transaction, 2)
    assert desk.silent(desk.expiry.expire(NOW + 30 * DAY)) == 0
    with pytest.raises(TransactionAborted, match="an operator's decision"):
        desk.end(Transaction("x", 0, b"", 0, 0), State.COMMITTED)
    desk.do(desk.operators.forget("x"))
    desk.take_over()
    assert desk.bundles.is_expired(transaction)
    desk.silent(desk.operators.forget("x"))


def test_an_operator_may_commit_only_what_is_prepared(desk: Desk) -> None:
    transaction = desk.init("x", Kind.TWO_PHASE)
    with pytest.raises(InvalidRequest, match="only what is prepared can be committed"):
        desk.operators.resolve("x", True, NOW)
    desk.end(transaction, State.PREPARED, PART)
    with pytest.raises(InvalidRequest, match="commit it or roll it back first"):
        desk.operators.forget("x")
    desk.do(desk.operators.resolve("x", True, NOW))
    assert desk.bundles.to_complete() == [(transaction, State.COMMITTED, PART)]
    assert desk.silent(desk.producers.end(transaction, State.ABORTED, [], NOW)) is State.COMMITTED_BY_OPERATOR


def test_an_operator_may_abort_what_is_undecided(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED)
    desk.do(desk.operators.resolve("t", False, NOW))
    with pytest.raises(TransactionAborted, match="operator"):
        desk.end(nxt(transaction), State.COMMITTED, PART)
    desk.do(desk.operators.forget("t"))
    with pytest.raises(InvalidRequest, match="no operator's decision"):
        desk.operators.forget("t")
    desk.end(transaction._replace(number=3), State.COMMITTED, PART)


def test_x20_a_part_that_is_given_up_counts_as_done(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED, PART, OTHER)
    with pytest.raises(InvalidRequest, match="incomplete in: 2, 3"):
        desk.operators.give_up("t", 4, NOW)
    assert list(desk.do(desk.operators.give_up("t", 3, NOW)).missing) == [2]
    desk.completed(transaction, 2)
    desk.take_over()
    assert desk.bundles.confirm(transaction) is State.ABORTED
    assert desk.told() == []


def test_operators_see_what_is_open_and_why(desk: Desk) -> None:
    transaction = desk.init("a")
    desk.init("b")
    desk.end(transaction, State.COMMITTED, PART)
    desk.bundles.trouble(transaction, 2, "its owner is not reachable")
    [info] = desk.operators.infos(open_only=True)
    assert (info.transaction.transactional_id, info.trouble) == ("a", "bundle 2: its owner is not reachable")
    assert (len(info.parts), len(desk.operators.describe("a").parts)) == (0, 1), "a list of many fits an answer"
    desk.fate(Transaction("b", 5, b"\x02" * 16, 1, 1), NOW)
    assert [info.transaction.transactional_id for info in desk.operators.infos(open_only=True)] == [
        "a",
        "b",
    ]
    desk.completed(transaction, 2)
    assert not desk.operators.describe("a").trouble
    assert len(desk.operators.infos(open_only=False)) == 2


def test_operators_see_the_undecided_transaction_that_a_bundle_asked_about(desk: Desk) -> None:
    first = desk.init()
    desk.end(first, State.COMMITTED)
    desk.fate(nxt(first), NOW + 1)
    info = desk.operators.describe("t")
    assert (info.state, info.transaction.number, info.complete, info.changed_ms) == (0, 2, False, NOW + 1)
    assert desk.do(desk.operators.resolve("t", False, NOW + 2)).transaction.number == 2
    assert desk.silent(desk.operators.resolve("t", False, NOW + 3)).state == int(State.ABORTED_BY_OPERATOR)


def test_an_operators_abort_is_not_taken_for_that_of_the_next_transaction(desk: Desk) -> None:
    first = desk.init()
    desk.do(desk.operators.resolve("t", False, NOW))
    desk.fate(nxt(first), NOW)
    assert desk.do(desk.operators.resolve("t", False, NOW)).transaction.number == 2
    with pytest.raises(TransactionAborted, match="operator"):
        desk.end(nxt(first), State.COMMITTED, PART)


def test_x9_a_question_about_a_second_transaction_of_an_id_that_is_used_once_changes_nothing(desk: Desk) -> None:
    first = desk.init(kind=Kind.TWO_PHASE)
    desk.end(first, State.COMMITTED)
    for now_ms in (NOW, NOW + DAY):
        assert desk.silent(desk.bundles.fate(nxt(first), PART, now_ms)) is State.ABORTED
    assert desk.operators.describe("t").state == int(State.COMMITTED)


# Expiry


def test_x16_an_id_expires_when_it_was_idle_for_long(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED, PART)
    assert desk.silent(desk.expiry.expire(NOW + 30 * DAY)) == 0  # incomplete
    desk.completed(transaction, 2)
    assert desk.silent(desk.expiry.expire(NOW + 7 * DAY - 1)) == 0
    assert not desk.bundles.is_expired(transaction)
    assert desk.do(desk.expiry.expire(NOW + 7 * DAY)) == 1
    assert desk.bundles.is_expired(transaction)
    desk.take_over()
    assert desk.init().producer_id != transaction.producer_id


def test_x16_what_is_prepared_or_asked_about_or_a_committed_xid_does_not_expire(desk: Desk) -> None:
    asked = desk.init("a")
    prepared = desk.init("b", Kind.TWO_PHASE)
    committed = desk.init("c", Kind.TWO_PHASE)
    desk.end(prepared, State.PREPARED, PART)
    desk.end(committed, State.COMMITTED)
    desk.fate(asked, NOW + 30 * DAY)
    assert desk.silent(desk.expiry.expire(NOW + 30 * DAY)) == 0
    assert desk.silent(desk.producers.outcome("c", 0, 0, NOW)).state is State.COMMITTED


def test_the_id_of_a_half_message_expires_soon_after_its_end() -> None:
    desk, transaction = half()
    assert desk.silent(desk.expiry.expire_half(NOW + DAY)) == 0  # undecided: a bundle may hold it
    desk.end(transaction, State.COMMITTED, PART)
    assert desk.silent(desk.expiry.expire_half(NOW + DAY)) == 0  # incomplete
    desk.completed(transaction, 2)
    desk.take_over()
    assert desk.silent(desk.expiry.expire_half(NOW + 119_999)) == 0
    assert desk.do(desk.expiry.expire_half(NOW + 120_000)) == 1
    assert desk.bundles.is_expired(transaction)
    desk.take_over()
    assert desk.silent(desk.expiry.expire_half(NOW + DAY)) == 0


def test_the_id_of_a_half_message_does_not_expire_before_it_is_decided() -> None:
    """A bundle that was away for as long may hold it, and asks only when it is back."""
    desk, transaction = half()
    assert not desk.expiry.wants_expiry(NOW + 400 * DAY)
    assert desk.silent(desk.expiry.expire(NOW + 400 * DAY)) == 0
    desk.take_over()
    assert desk.fate(transaction, NOW + 400 * DAY) is State.PREPARED


def test_an_operators_decision_about_a_half_message_does_not_expire() -> None:
    desk, transaction = half()
    desk.end(transaction, State.PREPARED, PART)
    desk.do(desk.operators.resolve("h", True, NOW))
    desk.completed(transaction, 2)
    assert desk.silent(desk.expiry.expire_half(NOW + 30 * DAY)) == 0


def test_records_of_participants_are_passed_over_and_later_ones_refused(desk: Desk) -> None:
    desk.coordinator.apply(b"done/" + b"00" * 16, b"whatever")
    desk.coordinator.apply(b"ref/" + b"00" * 16 + b"/1/1/0", None)
    with pytest.raises(LedgerMQError, match="a later version"):
        desk.coordinator.apply(b"later/x", b"")


def test_epochs_and_numbers_end_before_a_record_cannot_hold_them(desk: Desk) -> None:
    transaction = desk.init()
    with pytest.raises(InvalidRequest, match="numbers end"):
        desk.producers.outcome("t", transaction.epoch, NUMBER_MAX + 1, NOW)
    [entry] = desk.coordinator.entries()
    assert entry.value is not None
    newest = encode(replace(entry, value=replace(entry.value, number=NUMBER_MAX, state=State.ABORTED)))
    desk.coordinator.apply(newest.key, newest.value)
    with pytest.raises(InvalidRequest, match="numbers end"):
        desk.operators.resolve("t", False, NOW)
    last = encode(replace(entry, value=replace(entry.value, epoch=EPOCH_MAX)))
    desk.coordinator.apply(last.key, last.value)
    with pytest.raises(InvalidRequest, match="use another id"):
        desk.init()

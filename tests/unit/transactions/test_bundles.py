"""Check what a coordinator answers bundles, and callers that ask for an outcome.

Names of tests cite the rules X of the design page.
"""

from __future__ import annotations

from functools import partial

import pytest

from ledgermq.errors import (
    InvalidRequest,
    TransactionAborted,
    TransactionUnknown,
    Unavailable,
)
from ledgermq_broker.transactions.state.limits import EPOCH_MAX, NUMBER_MAX
from ledgermq_broker.transactions.state.types import Kind, Part, State, Transaction
from tests.unit.transactions.desks import DAY, NOW, PART, Desk, nxt


def test_x3_a_transaction_times_out_from_the_first_question_on_and_that_is_recorded(desk: Desk) -> None:
    transaction = desk.init()
    assert desk.fate(transaction, NOW) is State.UNDECIDED
    assert desk.fate(transaction, NOW + 59_999) is State.UNDECIDED
    assert desk.fate(transaction, NOW + 60_000) is State.ABORTED
    desk.take_over()
    with pytest.raises(TransactionAborted, match="60000 ms"):
        desk.end(transaction, State.COMMITTED, PART)
    desk.end(nxt(transaction), State.COMMITTED, PART)


def test_the_clock_of_a_transaction_begins_anew_at_a_takeover_and_for_the_next_one(desk: Desk) -> None:
    transaction = desk.init()
    desk.fate(transaction, NOW)
    desk.take_over()
    assert desk.fate(transaction, NOW + 60_000) is State.UNDECIDED
    desk.end(transaction, State.COMMITTED)
    assert desk.fate(nxt(transaction), NOW + 120_000) is State.UNDECIDED


def test_a_question_about_what_is_older_or_unknown_is_answered_by_abort(desk: Desk) -> None:
    old = desk.init()
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED)
    desk.end(nxt(transaction), State.COMMITTED, PART)
    never_begun = transaction._replace(epoch=EPOCH_MAX, number=NUMBER_MAX)
    unknown = Transaction("u", 5, b"u" * 16, 1, 1)
    for asked in (old, transaction, unknown, transaction._replace(producer_id=b"x" * 16), never_begun):
        assert desk.silent(desk.bundles.fate(asked, PART, NOW)) is State.ABORTED
    assert desk.silent(desk.bundles.fate(nxt(transaction), PART, NOW)) is State.UNDECIDED  # it is told, not asked
    after = transaction._replace(number=3)
    assert desk.silent(desk.bundles.fate(after, PART, NOW + DAY)) is State.UNDECIDED  # the one before is incomplete
    desk.completed(nxt(transaction), 2)
    assert desk.silent(desk.bundles.fate(nxt(transaction), PART, NOW)) is State.ABORTED  # what is left was not counted


def test_x17_an_outcome_that_is_asked_for_aborts_what_is_undecided(desk: Desk) -> None:
    transaction = desk.init()
    assert desk.do(desk.producers.outcome("t", 1, 1, NOW)) == (State.ABORTED, True)
    with pytest.raises(TransactionAborted):
        desk.end(transaction, State.COMMITTED, PART)
    desk.end(nxt(transaction), State.COMMITTED, PART)
    assert desk.silent(desk.producers.outcome("t", 1, 2, NOW)) == (State.COMMITTED, False)
    with pytest.raises(Unavailable):
        desk.producers.outcome("t", 1, 3, NOW)
    desk.completed(nxt(transaction), 2)
    assert desk.silent(desk.producers.outcome("t", 1, 2, NOW)) == (State.COMMITTED, True)


@pytest.mark.parametrize(("epoch", "number"), [(1, 2), (2, 1), (3, 1)])
def test_the_outcome_of_what_is_not_the_newest_is_unknown(desk: Desk, epoch: int, number: int) -> None:
    desk.init()
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED)
    desk.end(nxt(transaction), State.COMMITTED)
    with pytest.raises(TransactionUnknown):
        desk.producers.outcome("t", epoch, number, NOW)


def test_checks_that_a_fast_clock_has_counted_hold_up_no_further_ones(desk: Desk) -> None:
    half = desk.init("h", kind=Kind.HALF_MESSAGE)
    desk.end(half, State.PREPARED, PART)
    desk.do(desk.half_messages.checked(half, NOW + 3_600_000))
    assert desk.half_messages.due_checks(NOW) == [(half, "checkers")]
    desk.do(desk.half_messages.checked(half, NOW))
    assert desk.half_messages.due_checks(NOW + 29_999) == []
    assert desk.half_messages.due_checks(NOW + 30_000) == [(half, "checkers")]


def test_what_a_half_message_holds_without_a_message_is_aborted_at_its_time_out(desk: Desk) -> None:
    """Offsets, for example: no producer can be asked about them."""
    half = desk.init("h", kind=Kind.HALF_MESSAGE)
    assert desk.fate(half, NOW + 6_000, Part(2)) is State.UNDECIDED
    assert desk.fate(half, NOW + 66_000, Part(2)) is State.ABORTED
    half = desk.init("i", kind=Kind.HALF_MESSAGE)
    with pytest.raises(InvalidRequest, match="without a message"):
        desk.producers.end(half, State.PREPARED, [Part(2, {}, ())], NOW)


def test_the_outcome_of_the_epoch_before_is_kept_for_a_process_that_was_restarted(desk: Desk) -> None:
    """It has sent a commit, died, and begun an epoch before it asks."""
    first = desk.init()
    desk.end(first, State.ABORTED)
    desk.end(nxt(first), State.COMMITTED)
    for _ in range(3):  # it dies again and again before it asks
        desk.init()
        ask = partial(desk.producers.outcome, "t", now_ms=NOW)
        assert desk.silent(ask(epoch=1, number=2)) == (State.COMMITTED, True)
        assert desk.silent(ask(epoch=1, number=3)) == (State.ABORTED, True), "it was running when the epoch began"
    assert desk.silent(ask(epoch=2, number=1)) == (State.ABORTED, True)
    for epoch, number in ((1, 1), (1, 4), (2, 2), (5, 1)):
        with pytest.raises(TransactionUnknown):
            ask(epoch=epoch, number=number)
    fourth = desk.init()
    assert fourth.epoch == 5
    desk.end(fourth, State.ABORTED)
    assert desk.silent(ask(epoch=1, number=2)) == (State.COMMITTED, True)
    desk.init()
    assert desk.silent(ask(epoch=5, number=1)) == (State.ABORTED, True)
    with pytest.raises(TransactionUnknown):
        ask(epoch=1, number=2)


def test_an_epoch_without_a_decision_says_nothing_about_earlier_ones(desk: Desk) -> None:
    desk.init()
    desk.init()
    ask = partial(desk.producers.outcome, "t", now_ms=NOW)
    assert desk.silent(ask(epoch=1, number=1)) == (State.ABORTED, True)
    with pytest.raises(TransactionUnknown):
        ask(epoch=1, number=2)


def test_asking_for_what_was_never_begun_does_not_end_what_is_running(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED)
    with pytest.raises(TransactionUnknown, match="never begun"):
        desk.producers.outcome("t", transaction.epoch, transaction.number + 2, NOW)
    assert desk.end(nxt(transaction), State.COMMITTED) is State.COMMITTED


def test_the_outcome_of_an_ordinary_id_needs_a_number(desk: Desk) -> None:
    desk.init()
    with pytest.raises(InvalidRequest, match="count from 1"):
        desk.producers.outcome("t", 0, 0, NOW)


def test_x16_only_a_commit_that_is_incomplete_is_confirmed(desk: Desk) -> None:
    transaction = desk.init()
    assert desk.bundles.confirm(transaction) is State.ABORTED
    desk.end(transaction, State.COMMITTED, PART)
    assert desk.bundles.confirm(transaction) is State.COMMITTED
    assert desk.bundles.confirm(transaction._replace(epoch=2)) is State.ABORTED
    desk.completed(transaction, 2)
    assert desk.bundles.confirm(transaction) is State.ABORTED
    desk.end(nxt(transaction), State.ABORTED, PART)
    assert desk.bundles.confirm(nxt(transaction)) is State.ABORTED

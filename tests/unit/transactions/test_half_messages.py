"""Check how half messages are checked, and end; names of tests cite the rules X of the design page."""

from __future__ import annotations

import pytest

from ledgermq.errors import (
    InvalidRequest,
    TransactionAborted,
)
from ledgermq_broker.transactions.state.checks import unresolved_topic
from ledgermq_broker.transactions.state.types import Kind, Part, State, Transaction
from tests.unit.transactions.desks import DAY, NOW, OTHER, PART, STREAM, Desk, half


def test_a_half_message_waits_for_checks_once_its_bundle_asks(desk: Desk) -> None:
    desk, transaction = half()
    assert desk.fate(transaction, NOW) is State.UNDECIDED
    assert desk.fate(transaction, NOW + 5_999) is State.UNDECIDED
    assert desk.half_messages.due_checks(NOW + 5_999) == []
    assert desk.fate(transaction, NOW + 6_000) is State.PREPARED
    desk.take_over()
    assert desk.half_messages.due_checks(NOW + 6_000) == [(transaction, "checkers")]
    assert desk.do(desk.half_messages.checked(transaction, NOW + 6_000)) is State.PREPARED
    assert desk.half_messages.due_checks(NOW + 35_999) == []
    assert desk.half_messages.due_checks(NOW + 36_000) == [(transaction, "checkers")]
    desk.end(Transaction("h", 0, b"", 0, 0), State.COMMITTED)
    assert desk.bundles.to_complete() == [(transaction, State.COMMITTED, PART)]
    assert desk.silent(desk.half_messages.checked(transaction, NOW)) is State.COMMITTED


def test_the_producer_of_a_half_message_counts_for_itself(desk: Desk) -> None:
    desk, transaction = half()
    desk.fate(transaction, NOW)
    desk.fate(transaction, NOW + 6_000)
    with pytest.raises(InvalidRequest, match="one bundle"):
        desk.end(transaction, State.COMMITTED, PART, OTHER)
    desk.end(transaction, State.COMMITTED, Part(2, {STREAM: 1}))
    assert desk.bundles.to_complete() == [(transaction, State.COMMITTED, Part(2, {STREAM: 1}))]


def test_a_half_message_lies_in_one_bundle() -> None:
    desk, transaction = half()
    with pytest.raises(InvalidRequest, match="half message in 2 bundles"):
        desk.end(transaction, State.COMMITTED, PART, OTHER)
    desk.end(transaction, State.PREPARED, PART)
    assert desk.half_messages.due_checks(NOW) == [(transaction, "checkers")]


def test_x18_after_the_last_check_a_half_message_is_unresolved_for_good() -> None:
    desk, transaction = half()
    desk.end(transaction, State.PREPARED, PART)
    now_ms = NOW
    for _ in range(15):
        assert desk.half_messages.due_checks(now_ms)
        assert desk.do(desk.half_messages.checked(transaction, now_ms)) is State.PREPARED
        now_ms += 30_000
    assert desk.half_messages.due_checks(now_ms) == []
    assert not desk.silent(desk.half_messages.declare_unresolved(transaction, now_ms - 1))
    assert desk.do(desk.half_messages.declare_unresolved(transaction, now_ms))
    assert not desk.silent(desk.half_messages.declare_unresolved(transaction, now_ms))
    desk.take_over()
    assert desk.half_messages.due_checks(now_ms + DAY) == []
    assert desk.bundles.to_complete() == [(transaction, State.UNRESOLVED, PART)]
    assert desk.silent(desk.bundles.fate(transaction, PART, now_ms)) is State.UNRESOLVED
    with pytest.raises(TransactionAborted, match="after 15 checks"):
        desk.end(transaction, State.COMMITTED)
    with pytest.raises(InvalidRequest, match=r"UNRESOLVED.*transaction unresolved list checkers"):
        desk.operators.resolve("h", True, now_ms)
    desk.completed(transaction, 2)
    assert desk.silent(desk.bundles.fate(transaction, PART, now_ms)) is State.ABORTED
    assert desk.silent(desk.expiry.expire_half(now_ms + DAY)) == 0
    assert desk.do(desk.expiry.expire(now_ms + 7 * DAY)) == 1


def test_a_half_message_without_producers_is_unresolved_after_a_day() -> None:
    desk, transaction = half()
    desk.end(transaction, State.PREPARED, PART)
    assert desk.half_messages.unresolved(NOW + DAY - 1) == []
    assert desk.half_messages.unresolved(NOW + DAY) == [transaction]
    desk.do(desk.half_messages.checked(transaction, NOW + DAY - 1))
    assert desk.half_messages.unresolved(NOW + DAY) == []  # a producer was asked
    assert not desk.silent(desk.half_messages.declare_unresolved(transaction, NOW + DAY))


@pytest.mark.parametrize("ahead_ms", [DAY, 20 * 60_000])
def test_what_a_clock_ahead_has_stamped_is_unresolved_once_this_term_has_waited(ahead_ms: int) -> None:
    """The owner of the last check had a clock that was ahead; judged by stamps alone the message would
    stay undecided until the clocks of others have caught up.
    """
    desk, transaction = half()
    desk.end(transaction, State.PREPARED, PART)
    for _ in range(15):
        desk.do(desk.half_messages.checked(transaction, NOW + ahead_ms))
    desk.take_over()
    desk.loop_s += 29.9
    assert desk.half_messages.unresolved(NOW + 30_000) == []
    desk.loop_s += 0.1
    assert desk.half_messages.unresolved(NOW + 30_000) == [transaction]
    assert desk.do(desk.half_messages.declare_unresolved(transaction, NOW + 30_000))
    desk.completed(transaction, 2)


def test_the_wait_of_this_term_begins_again_with_each_check() -> None:
    desk, transaction = half()
    desk.end(transaction, State.PREPARED, PART)
    for _ in range(15):
        desk.loop_s += 30
        assert desk.half_messages.unresolved(NOW) == []
        desk.do(desk.half_messages.checked(transaction, NOW))
    assert desk.half_messages.unresolved(NOW) == []
    desk.loop_s += 30
    assert desk.half_messages.unresolved(NOW) == [transaction]


def test_a_term_that_waited_long_enough_lets_ids_expire_whatever_clock_stamped_them(desk: Desk) -> None:
    """Ids with a stamp of the future would use up the places of a coordinator until it is reached."""
    half = desk.init("h", Kind.HALF_MESSAGE, NOW + 400 * DAY)
    desk.end(half, State.COMMITTED, PART, now_ms=NOW + 400 * DAY)
    desk.completed(half, 2)
    desk.init("t", now_ms=NOW + 400 * DAY)
    desk.take_over()
    assert desk.silent(desk.expiry.expire_half(NOW)) == desk.silent(desk.expiry.expire(NOW)) == 0
    desk.loop_s += 120
    assert desk.do(desk.expiry.expire_half(NOW)) == 1
    desk.loop_s += 7 * DAY / 1000
    assert desk.do(desk.expiry.expire(NOW)) == 1
    assert desk.coordinator.size == 0


@pytest.mark.parametrize("jump_ms", [DAY, -DAY])
def test_a_clock_that_jumps_moves_no_time_out(desk: Desk, jump_ms: int) -> None:
    transaction = desk.init()
    for loop_s, state in ((0, State.UNDECIDED), (59.9, State.UNDECIDED), (60, State.ABORTED)):
        desk.loop_s = loop_s
        assert desk.do(desk.bundles.fate(transaction, PART, NOW + jump_ms)) is state
        jump_ms += 1


def test_a_half_message_that_was_long_on_its_way_is_checked_at_the_first_question() -> None:
    desk, transaction = half()
    assert desk.fate(transaction, NOW + 6_000) is State.PREPARED
    assert desk.half_messages.part_of(transaction) == PART


@pytest.mark.parametrize("group", ["", "a/b", "__offsets", "g" * 239])
def test_a_check_group_also_names_its_topic_of_unresolved_messages(group: str) -> None:
    with pytest.raises(InvalidRequest, match="check group"):
        Desk().producers.init("h", Kind.HALF_MESSAGE, 0, group, NOW)
    assert unresolved_topic("g" * 238).endswith(".unresolved")

"""Check a coordinator's decisions, refusals and memory; names of tests cite the rules X of the design page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest

from ledgermq.errors import (
    InvalidRequest,
    LedgerMQError,
    ResourceExhausted,
    TransactionAborted,
    TransactionFenced,
    TransactionUnknown,
    Unavailable,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.transactions.state.checks import unresolved_topic
from ledgermq_broker.transactions.state.coordinator import Coordinator, Identity
from ledgermq_broker.transactions.state.limits import EPOCH_MAX, NUMBER_MAX, TransactionLimits
from ledgermq_broker.transactions.state.records import encode
from ledgermq_broker.transactions.state.types import Kind, Part, State, Stream, Transaction
from ledgermq_ledger.log.log_record import Decision

T = TypeVar("T")

NOW = 1_700_000_000_000
DAY = 24 * 3600 * 1000
STREAM = Stream(b"", 7, 0)
PART = Part(2, {STREAM: 3})
OTHER = Part(3, {Stream(b"", 7, 1): 1}, ("g",))


class Desk:
    """A coordinator and its log."""

    def __init__(self, limits: TransactionLimits | None = None) -> None:
        self.limits = limits or TransactionLimits()
        self.drawn = 0
        self.loop_s = 0.0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.coordinator = Coordinator(5, self.limits, self.new_id, lambda: self.loop_s)

    def new_id(self) -> bytes:
        self.drawn += 1
        return bytes([self.drawn]) * 16

    def do(self, decision: Decision[T]) -> T:
        self.log += [(record.key, record.value) for record in decision.records]
        return decision.answer

    def silent(self, decision: Decision[T]) -> T:
        assert decision.records == []
        return decision.answer

    def take_over(self) -> None:
        before = self.coordinator.entries()
        self.coordinator = Coordinator(5, self.limits, self.new_id, lambda: self.loop_s)
        for key, value in self.log:
            self.coordinator.apply(key, value)
        self.coordinator.start(NOW)
        assert self.coordinator.entries() == before

    def init(self, name: str = "t", kind: Kind = Kind.ORDINARY, now_ms: int = NOW) -> Transaction:
        """Return the first transaction of the new epoch."""
        group = "checkers" if kind is Kind.HALF_MESSAGE else ""
        identity: Identity = self.do(self.coordinator.init(name, kind, 0, group, now_ms))
        return Transaction(name, identity.coordinator, identity.producer_id, identity.epoch, 1)

    def end(self, transaction: Transaction, outcome: State, *parts: Part, now_ms: int = NOW) -> State:
        return self.do(self.coordinator.end(transaction, outcome, parts, now_ms))

    def fate(self, transaction: Transaction, now_ms: int, part: Part = PART) -> State:
        """The loop's clock goes on as the wall clock does."""
        self.loop_s = max(self.loop_s, (now_ms - NOW) / 1000)
        return self.do(self.coordinator.fate(transaction, part, now_ms))

    def completed(self, transaction: Transaction, *bundles: int) -> None:
        for bundle in bundles:
            self.do(self.coordinator.completed(transaction, bundle, NOW))

    def told(self) -> list[tuple[str, int, State, int]]:
        return [
            (transaction.transactional_id, transaction.number, state, part.bundle)
            for transaction, state, part in self.coordinator.to_complete()
        ]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def nxt(transaction: Transaction) -> Transaction:
    return transaction._replace(number=transaction.number + 1)


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
    assert desk.do(desk.coordinator.init("t", Kind.ORDINARY, 900_000, "", NOW)).timeout_ms == 900_000
    assert desk.do(desk.coordinator.init("t", Kind.ORDINARY, 0, "", NOW)).timeout_ms == 60_000
    with pytest.raises(InvalidRequest, match="at most 900000 ms, not 900001"):
        desk.coordinator.init("t", Kind.ORDINARY, 900_001, "", NOW)


@pytest.mark.parametrize(
    ("name", "kind", "group"),
    [("a/b", Kind.ORDINARY, ""), ("t", Kind.HALF_MESSAGE, ""), ("t", Kind.ORDINARY, "g"), ("", Kind.ORDINARY, "")],
)
def test_an_init_that_makes_no_sense_is_refused(desk: Desk, name: str, kind: Kind, group: str) -> None:
    with pytest.raises(InvalidRequest):
        desk.coordinator.init(name, kind, 0, group, NOW)
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
    assert desk.coordinator.describe("t").complete
    desk.take_over()


def test_an_empty_commit_is_complete_at_once(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED)
    assert desk.told() == []
    desk.end(nxt(transaction), State.COMMITTED)


def test_an_abort_is_told_too_without_counts(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.ABORTED, PART, OTHER)
    [(_, state, first), (_, _, second)] = desk.coordinator.to_complete()
    assert (state, first, second) == (State.ABORTED, Part(2), Part(3, {}, ("g",)))


def test_a_repeated_call_gets_the_same_answer(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED, PART)
    assert desk.silent(desk.coordinator.end(transaction, State.COMMITTED, [PART], NOW)) is State.COMMITTED
    assert desk.silent(desk.coordinator.end(transaction, State.ABORTED, [], NOW)) is State.COMMITTED
    desk.completed(transaction, 2)
    desk.end(nxt(transaction), State.ABORTED)
    assert desk.silent(desk.coordinator.end(nxt(transaction), State.ABORTED, [], NOW)) is State.ABORTED
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
        (Transaction("t", 5, b"\x01" * 16, 1, 1), State.COMMITTED, [Part(2, {STREAM: 10_001})]),
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
        desk.coordinator.end(transaction, outcome, parts, NOW)
    assert desk.coordinator.entries() == before


def test_x6_the_next_transaction_is_decided_when_the_last_one_is_complete(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.ABORTED, PART)
    desk.coordinator.trouble(transaction, 2, "bundle 2 has no owner")
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
    desk.silent(desk.coordinator.completed(first, 2, NOW))
    desk.silent(desk.coordinator.completed(nxt(first), 9, NOW))
    assert desk.told() == [("t", 2, State.COMMITTED, 2)]


# Questions


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
        assert desk.silent(desk.coordinator.fate(asked, PART, NOW)) is State.ABORTED
    assert desk.silent(desk.coordinator.fate(nxt(transaction), PART, NOW)) is State.UNDECIDED  # it is told, not asked
    after = transaction._replace(number=3)
    assert desk.silent(desk.coordinator.fate(after, PART, NOW + DAY)) is State.UNDECIDED  # the one before is incomplete
    desk.completed(nxt(transaction), 2)
    assert (
        desk.silent(desk.coordinator.fate(nxt(transaction), PART, NOW)) is State.ABORTED
    )  # what is left was not counted


def test_x17_an_outcome_that_is_asked_for_aborts_what_is_undecided(desk: Desk) -> None:
    transaction = desk.init()
    assert desk.do(desk.coordinator.outcome("t", 1, 1, NOW)) == (State.ABORTED, True)
    with pytest.raises(TransactionAborted):
        desk.end(transaction, State.COMMITTED, PART)
    desk.end(nxt(transaction), State.COMMITTED, PART)
    assert desk.silent(desk.coordinator.outcome("t", 1, 2, NOW)) == (State.COMMITTED, False)
    with pytest.raises(Unavailable):
        desk.coordinator.outcome("t", 1, 3, NOW)
    desk.completed(nxt(transaction), 2)
    assert desk.silent(desk.coordinator.outcome("t", 1, 2, NOW)) == (State.COMMITTED, True)


@pytest.mark.parametrize(("epoch", "number"), [(1, 2), (2, 1), (3, 1)])
def test_the_outcome_of_what_is_not_the_newest_is_unknown(desk: Desk, epoch: int, number: int) -> None:
    desk.init()
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED)
    desk.end(nxt(transaction), State.COMMITTED)
    with pytest.raises(TransactionUnknown):
        desk.coordinator.outcome("t", epoch, number, NOW)


def test_checks_that_a_fast_clock_has_counted_hold_up_no_further_ones(desk: Desk) -> None:
    half = desk.init("h", kind=Kind.HALF_MESSAGE)
    desk.end(half, State.PREPARED, PART)
    desk.do(desk.coordinator.checked(half, NOW + 3_600_000))
    assert desk.coordinator.due_checks(NOW) == [(half, "checkers")]
    desk.do(desk.coordinator.checked(half, NOW))
    assert desk.coordinator.due_checks(NOW + 29_999) == []
    assert desk.coordinator.due_checks(NOW + 30_000) == [(half, "checkers")]


def test_what_a_half_message_holds_without_a_message_is_aborted_at_its_time_out(desk: Desk) -> None:
    """Offsets, for example: no producer can be asked about them."""
    half = desk.init("h", kind=Kind.HALF_MESSAGE)
    assert desk.fate(half, NOW + 6_000, Part(2)) is State.UNDECIDED
    assert desk.fate(half, NOW + 66_000, Part(2)) is State.ABORTED
    half = desk.init("i", kind=Kind.HALF_MESSAGE)
    with pytest.raises(InvalidRequest, match="without a message"):
        desk.coordinator.end(half, State.PREPARED, [Part(2, {}, ())], NOW)


def test_the_outcome_of_the_epoch_before_is_kept_for_a_process_that_was_restarted(desk: Desk) -> None:
    """It has sent a commit, died, and begun an epoch before it asks."""
    first = desk.init()
    desk.end(first, State.ABORTED)
    desk.end(nxt(first), State.COMMITTED)
    for _ in range(3):  # it dies again and again before it asks
        desk.init()
        ask = partial(desk.coordinator.outcome, "t", now_ms=NOW)
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
    ask = partial(desk.coordinator.outcome, "t", now_ms=NOW)
    assert desk.silent(ask(epoch=1, number=1)) == (State.ABORTED, True)
    with pytest.raises(TransactionUnknown):
        ask(epoch=1, number=2)


def test_asking_for_what_was_never_begun_does_not_end_what_is_running(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED)
    with pytest.raises(TransactionUnknown, match="never begun"):
        desk.coordinator.outcome("t", transaction.epoch, transaction.number + 2, NOW)
    assert desk.end(nxt(transaction), State.COMMITTED) is State.COMMITTED


def test_the_outcome_of_an_ordinary_id_needs_a_number(desk: Desk) -> None:
    desk.init()
    with pytest.raises(InvalidRequest, match="count from 1"):
        desk.coordinator.outcome("t", 0, 0, NOW)


def test_x16_only_a_commit_that_is_incomplete_is_confirmed(desk: Desk) -> None:
    transaction = desk.init()
    assert desk.coordinator.confirm(transaction) is State.ABORTED
    desk.end(transaction, State.COMMITTED, PART)
    assert desk.coordinator.confirm(transaction) is State.COMMITTED
    assert desk.coordinator.confirm(transaction._replace(epoch=2)) is State.ABORTED
    desk.completed(transaction, 2)
    assert desk.coordinator.confirm(transaction) is State.ABORTED
    desk.end(nxt(transaction), State.ABORTED, PART)
    assert desk.coordinator.confirm(nxt(transaction)) is State.ABORTED


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
        return desk.do(desk.coordinator.init("x", Kind.TWO_PHASE, 0, "", NOW, nonce))

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
        return desk.do(desk.coordinator.init("h", Kind.HALF_MESSAGE, 0, "checkers", NOW, nonce))

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
    assert desk.silent(desk.coordinator.end(transaction, State.PREPARED, [PART], NOW)) is (ends or (State.PREPARED,))[0]
    for parts in ([replace(PART, counts={STREAM: 2})], [PART, Part(3, {STREAM: 1})], []):
        with pytest.raises(TransactionFenced, match="another program"):
            desk.coordinator.end(transaction, State.PREPARED, parts, NOW)


@pytest.mark.parametrize("kind", [Kind.TWO_PHASE, Kind.HALF_MESSAGE, Kind.ORDINARY])
def test_x9_a_commit_that_counts_other_batches_is_no_repetition(desk: Desk, kind: Kind) -> None:
    transaction = desk.init("x", kind)
    desk.end(transaction, State.COMMITTED, PART)
    for _ in range(2):
        assert desk.silent(desk.coordinator.end(transaction, State.COMMITTED, [PART], NOW)) is State.COMMITTED
        with pytest.raises(TransactionFenced, match="COMMITTED with other batches"):
            desk.coordinator.end(transaction, State.COMMITTED, [Part(2, {Stream(b"", 7, 2): 1})], NOW)
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
    assert desk.silent(desk.coordinator.end(transaction, State.PREPARED, [Part(3)], NOW)) is State.PREPARED


def test_what_is_prepared_has_no_time_out_and_any_process_may_end_it(desk: Desk) -> None:
    transaction = desk.init("x", Kind.TWO_PHASE)
    assert desk.end(transaction, State.PREPARED, PART) is State.PREPARED
    assert desk.silent(desk.coordinator.end(transaction, State.PREPARED, [PART], NOW)) is State.PREPARED
    assert desk.told() == []
    desk.fate(transaction, NOW)
    assert desk.silent(desk.coordinator.fate(transaction, PART, NOW + 30 * DAY)) is State.PREPARED
    assert desk.silent(desk.coordinator.outcome("x", 0, 0, NOW)) == (State.PREPARED, False)
    desk.take_over()
    assert desk.end(Transaction("x", 0, b"", 0, 0), State.COMMITTED) is State.COMMITTED
    assert desk.coordinator.to_complete() == [(transaction, State.COMMITTED, PART)]
    assert desk.end(Transaction("x", 0, b"", 0, 0), State.COMMITTED) is State.COMMITTED


def test_what_is_prepared_may_be_rolled_back(desk: Desk) -> None:
    transaction = desk.init("x", Kind.TWO_PHASE)
    desk.end(transaction, State.PREPARED, PART)
    assert desk.end(Transaction("x", 0, b"", 0, 0), State.ABORTED) is State.ABORTED
    assert desk.coordinator.to_complete() == [(transaction, State.ABORTED, Part(2))]
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
    assert desk.do(desk.coordinator.outcome("x", 0, 0, NOW)) == (State.ABORTED, True)
    with pytest.raises(TransactionAborted):
        desk.end(transaction, State.PREPARED, PART)


# Half messages


def half() -> tuple[Desk, Transaction]:
    desk = Desk()
    return desk, desk.init("h", Kind.HALF_MESSAGE)


def test_a_half_message_waits_for_checks_once_its_bundle_asks(desk: Desk) -> None:
    desk, transaction = half()
    assert desk.fate(transaction, NOW) is State.UNDECIDED
    assert desk.fate(transaction, NOW + 5_999) is State.UNDECIDED
    assert desk.coordinator.due_checks(NOW + 5_999) == []
    assert desk.fate(transaction, NOW + 6_000) is State.PREPARED
    desk.take_over()
    assert desk.coordinator.due_checks(NOW + 6_000) == [(transaction, "checkers")]
    assert desk.do(desk.coordinator.checked(transaction, NOW + 6_000)) is State.PREPARED
    assert desk.coordinator.due_checks(NOW + 35_999) == []
    assert desk.coordinator.due_checks(NOW + 36_000) == [(transaction, "checkers")]
    desk.end(Transaction("h", 0, b"", 0, 0), State.COMMITTED)
    assert desk.coordinator.to_complete() == [(transaction, State.COMMITTED, PART)]
    assert desk.silent(desk.coordinator.checked(transaction, NOW)) is State.COMMITTED


def test_the_producer_of_a_half_message_counts_for_itself(desk: Desk) -> None:
    desk, transaction = half()
    desk.fate(transaction, NOW)
    desk.fate(transaction, NOW + 6_000)
    with pytest.raises(InvalidRequest, match="one bundle"):
        desk.end(transaction, State.COMMITTED, PART, OTHER)
    desk.end(transaction, State.COMMITTED, Part(2, {STREAM: 1}))
    assert desk.coordinator.to_complete() == [(transaction, State.COMMITTED, Part(2, {STREAM: 1}))]


def test_a_half_message_lies_in_one_bundle() -> None:
    desk, transaction = half()
    with pytest.raises(InvalidRequest, match="half message in 2 bundles"):
        desk.end(transaction, State.COMMITTED, PART, OTHER)
    desk.end(transaction, State.PREPARED, PART)
    assert desk.coordinator.due_checks(NOW) == [(transaction, "checkers")]


def test_x18_after_the_last_check_a_half_message_is_unresolved_for_good() -> None:
    desk, transaction = half()
    desk.end(transaction, State.PREPARED, PART)
    now_ms = NOW
    for _ in range(15):
        assert desk.coordinator.due_checks(now_ms)
        assert desk.do(desk.coordinator.checked(transaction, now_ms)) is State.PREPARED
        now_ms += 30_000
    assert desk.coordinator.due_checks(now_ms) == []
    assert not desk.silent(desk.coordinator.declare_unresolved(transaction, now_ms - 1))
    assert desk.do(desk.coordinator.declare_unresolved(transaction, now_ms))
    assert not desk.silent(desk.coordinator.declare_unresolved(transaction, now_ms))
    desk.take_over()
    assert desk.coordinator.due_checks(now_ms + DAY) == []
    assert desk.coordinator.to_complete() == [(transaction, State.UNRESOLVED, PART)]
    assert desk.silent(desk.coordinator.fate(transaction, PART, now_ms)) is State.UNRESOLVED
    with pytest.raises(TransactionAborted, match="after 15 checks"):
        desk.end(transaction, State.COMMITTED)
    with pytest.raises(InvalidRequest, match=r"UNRESOLVED.*transaction unresolved list checkers"):
        desk.coordinator.resolve("h", True, now_ms)
    desk.completed(transaction, 2)
    assert desk.silent(desk.coordinator.fate(transaction, PART, now_ms)) is State.ABORTED
    assert desk.silent(desk.coordinator.expire_half(now_ms + DAY)) == 0
    assert desk.do(desk.coordinator.expire(now_ms + 7 * DAY)) == 1


def test_a_half_message_without_producers_is_unresolved_after_a_day() -> None:
    desk, transaction = half()
    desk.end(transaction, State.PREPARED, PART)
    assert desk.coordinator.unresolved(NOW + DAY - 1) == []
    assert desk.coordinator.unresolved(NOW + DAY) == [transaction]
    desk.do(desk.coordinator.checked(transaction, NOW + DAY - 1))
    assert desk.coordinator.unresolved(NOW + DAY) == []  # a producer was asked
    assert not desk.silent(desk.coordinator.declare_unresolved(transaction, NOW + DAY))


@pytest.mark.parametrize("ahead_ms", [DAY, 20 * 60_000])
def test_what_a_clock_ahead_has_stamped_is_unresolved_once_this_term_has_waited(ahead_ms: int) -> None:
    """The owner of the last check had a clock that was ahead; judged by stamps alone the message would
    stay undecided until the clocks of others have caught up.
    """
    desk, transaction = half()
    desk.end(transaction, State.PREPARED, PART)
    for _ in range(15):
        desk.do(desk.coordinator.checked(transaction, NOW + ahead_ms))
    desk.take_over()
    desk.loop_s += 29.9
    assert desk.coordinator.unresolved(NOW + 30_000) == []
    desk.loop_s += 0.1
    assert desk.coordinator.unresolved(NOW + 30_000) == [transaction]
    assert desk.do(desk.coordinator.declare_unresolved(transaction, NOW + 30_000))
    desk.completed(transaction, 2)


def test_the_wait_of_this_term_begins_again_with_each_check() -> None:
    desk, transaction = half()
    desk.end(transaction, State.PREPARED, PART)
    for _ in range(15):
        desk.loop_s += 30
        assert desk.coordinator.unresolved(NOW) == []
        desk.do(desk.coordinator.checked(transaction, NOW))
    assert desk.coordinator.unresolved(NOW) == []
    desk.loop_s += 30
    assert desk.coordinator.unresolved(NOW) == [transaction]


def test_a_term_that_waited_long_enough_lets_ids_expire_whatever_clock_stamped_them(desk: Desk) -> None:
    """Ids with a stamp of the future would use up the places of a coordinator until it is reached."""
    half = desk.init("h", Kind.HALF_MESSAGE, NOW + 400 * DAY)
    desk.end(half, State.COMMITTED, PART, now_ms=NOW + 400 * DAY)
    desk.completed(half, 2)
    desk.init("t", now_ms=NOW + 400 * DAY)
    desk.take_over()
    assert desk.silent(desk.coordinator.expire_half(NOW)) == desk.silent(desk.coordinator.expire(NOW)) == 0
    desk.loop_s += 120
    assert desk.do(desk.coordinator.expire_half(NOW)) == 1
    desk.loop_s += 7 * DAY / 1000
    assert desk.do(desk.coordinator.expire(NOW)) == 1
    assert desk.coordinator.size == 0


@pytest.mark.parametrize("jump_ms", [DAY, -DAY])
def test_a_clock_that_jumps_moves_no_time_out(desk: Desk, jump_ms: int) -> None:
    transaction = desk.init()
    for loop_s, state in ((0, State.UNDECIDED), (59.9, State.UNDECIDED), (60, State.ABORTED)):
        desk.loop_s = loop_s
        assert desk.do(desk.coordinator.fate(transaction, PART, NOW + jump_ms)) is state
        jump_ms += 1


def test_a_half_message_that_was_long_on_its_way_is_checked_at_the_first_question() -> None:
    desk, transaction = half()
    assert desk.fate(transaction, NOW + 6_000) is State.PREPARED
    assert desk.coordinator.part_of(transaction) == PART


@pytest.mark.parametrize("group", ["", "a/b", "__offsets", "g" * 239])
def test_a_check_group_also_names_its_topic_of_unresolved_messages(group: str) -> None:
    with pytest.raises(InvalidRequest, match="check group"):
        Desk().coordinator.init("h", Kind.HALF_MESSAGE, 0, group, NOW)
    assert unresolved_topic("g" * 238).endswith(".unresolved")


# Operators


def test_an_operator_decides_what_is_prepared_until_it_is_forgotten(desk: Desk) -> None:
    transaction = desk.init("x", Kind.TWO_PHASE)
    desk.end(transaction, State.PREPARED, PART)
    info = desk.do(desk.coordinator.resolve("x", False, NOW))
    assert (info.state, list(info.missing)) == (pb.ABORTED_BY_OPERATOR, [2])
    assert desk.silent(desk.coordinator.resolve("x", False, NOW)) == info
    with pytest.raises(InvalidRequest, match="ABORTED_BY_OPERATOR"):
        desk.coordinator.resolve("x", True, NOW)
    assert desk.coordinator.to_complete() == [(transaction, State.ABORTED, Part(2))]
    with pytest.raises(Unavailable):
        desk.coordinator.forget("x")
    desk.completed(transaction, 2)
    assert desk.silent(desk.coordinator.expire(NOW + 30 * DAY)) == 0
    with pytest.raises(TransactionAborted, match="an operator's decision"):
        desk.end(Transaction("x", 0, b"", 0, 0), State.COMMITTED)
    desk.do(desk.coordinator.forget("x"))
    desk.take_over()
    assert desk.coordinator.is_expired(transaction)
    desk.silent(desk.coordinator.forget("x"))


def test_an_operator_may_commit_only_what_is_prepared(desk: Desk) -> None:
    transaction = desk.init("x", Kind.TWO_PHASE)
    with pytest.raises(InvalidRequest, match="only what is prepared can be committed"):
        desk.coordinator.resolve("x", True, NOW)
    desk.end(transaction, State.PREPARED, PART)
    with pytest.raises(InvalidRequest, match="commit it or roll it back first"):
        desk.coordinator.forget("x")
    desk.do(desk.coordinator.resolve("x", True, NOW))
    assert desk.coordinator.to_complete() == [(transaction, State.COMMITTED, PART)]
    assert desk.silent(desk.coordinator.end(transaction, State.ABORTED, [], NOW)) is State.COMMITTED_BY_OPERATOR


def test_an_operator_may_abort_what_is_undecided(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED)
    desk.do(desk.coordinator.resolve("t", False, NOW))
    with pytest.raises(TransactionAborted, match="operator"):
        desk.end(nxt(transaction), State.COMMITTED, PART)
    desk.do(desk.coordinator.forget("t"))
    with pytest.raises(InvalidRequest, match="no operator's decision"):
        desk.coordinator.forget("t")
    desk.end(transaction._replace(number=3), State.COMMITTED, PART)


def test_x20_a_part_that_is_given_up_counts_as_done(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED, PART, OTHER)
    with pytest.raises(InvalidRequest, match="incomplete in: 2, 3"):
        desk.coordinator.give_up("t", 4, NOW)
    assert list(desk.do(desk.coordinator.give_up("t", 3, NOW)).missing) == [2]
    desk.completed(transaction, 2)
    desk.take_over()
    assert desk.coordinator.confirm(transaction) is State.ABORTED
    assert desk.told() == []


def test_operators_see_what_is_open_and_why(desk: Desk) -> None:
    transaction = desk.init("a")
    desk.init("b")
    desk.end(transaction, State.COMMITTED, PART)
    desk.coordinator.trouble(transaction, 2, "its owner is not reachable")
    [info] = desk.coordinator.infos(open_only=True)
    assert (info.transaction.transactional_id, info.trouble) == ("a", "bundle 2: its owner is not reachable")
    assert (len(info.parts), len(desk.coordinator.describe("a").parts)) == (0, 1), "a list of many fits an answer"
    desk.fate(Transaction("b", 5, b"\x02" * 16, 1, 1), NOW)
    assert [info.transaction.transactional_id for info in desk.coordinator.infos(open_only=True)] == ["a", "b"]
    desk.completed(transaction, 2)
    assert not desk.coordinator.describe("a").trouble
    assert len(desk.coordinator.infos(open_only=False)) == 2


def test_operators_see_the_undecided_transaction_that_a_bundle_asked_about(desk: Desk) -> None:
    first = desk.init()
    desk.end(first, State.COMMITTED)
    desk.fate(nxt(first), NOW + 1)
    info = desk.coordinator.describe("t")
    assert (info.state, info.transaction.number, info.complete, info.changed_ms) == (0, 2, False, NOW + 1)
    assert desk.do(desk.coordinator.resolve("t", False, NOW + 2)).transaction.number == 2
    assert desk.silent(desk.coordinator.resolve("t", False, NOW + 3)).state == int(State.ABORTED_BY_OPERATOR)


def test_an_operators_abort_is_not_taken_for_that_of_the_next_transaction(desk: Desk) -> None:
    first = desk.init()
    desk.do(desk.coordinator.resolve("t", False, NOW))
    desk.fate(nxt(first), NOW)
    assert desk.do(desk.coordinator.resolve("t", False, NOW)).transaction.number == 2
    with pytest.raises(TransactionAborted, match="operator"):
        desk.end(nxt(first), State.COMMITTED, PART)


def test_x9_a_question_about_a_second_transaction_of_an_id_that_is_used_once_changes_nothing(desk: Desk) -> None:
    first = desk.init(kind=Kind.TWO_PHASE)
    desk.end(first, State.COMMITTED)
    for now_ms in (NOW, NOW + DAY):
        assert desk.silent(desk.coordinator.fate(nxt(first), PART, now_ms)) is State.ABORTED
    assert desk.coordinator.describe("t").state == int(State.COMMITTED)


# Expiry


def test_x16_an_id_expires_when_it_was_idle_for_long(desk: Desk) -> None:
    transaction = desk.init()
    desk.end(transaction, State.COMMITTED, PART)
    assert desk.silent(desk.coordinator.expire(NOW + 30 * DAY)) == 0  # incomplete
    desk.completed(transaction, 2)
    assert desk.silent(desk.coordinator.expire(NOW + 7 * DAY - 1)) == 0
    assert not desk.coordinator.is_expired(transaction)
    assert desk.do(desk.coordinator.expire(NOW + 7 * DAY)) == 1
    assert desk.coordinator.is_expired(transaction)
    desk.take_over()
    assert desk.init().producer_id != transaction.producer_id


def test_x16_what_is_prepared_or_asked_about_or_a_committed_xid_does_not_expire(desk: Desk) -> None:
    asked = desk.init("a")
    prepared = desk.init("b", Kind.TWO_PHASE)
    committed = desk.init("c", Kind.TWO_PHASE)
    desk.end(prepared, State.PREPARED, PART)
    desk.end(committed, State.COMMITTED)
    desk.fate(asked, NOW + 30 * DAY)
    assert desk.silent(desk.coordinator.expire(NOW + 30 * DAY)) == 0
    assert desk.silent(desk.coordinator.outcome("c", 0, 0, NOW)).state is State.COMMITTED


def test_the_id_of_a_half_message_expires_soon_after_its_end() -> None:
    desk, transaction = half()
    assert desk.silent(desk.coordinator.expire_half(NOW + DAY)) == 0  # undecided: a bundle may hold it
    desk.end(transaction, State.COMMITTED, PART)
    assert desk.silent(desk.coordinator.expire_half(NOW + DAY)) == 0  # incomplete
    desk.completed(transaction, 2)
    desk.take_over()
    assert desk.silent(desk.coordinator.expire_half(NOW + 119_999)) == 0
    assert desk.do(desk.coordinator.expire_half(NOW + 120_000)) == 1
    assert desk.coordinator.is_expired(transaction)
    desk.take_over()
    assert desk.silent(desk.coordinator.expire_half(NOW + DAY)) == 0


def test_the_id_of_a_half_message_does_not_expire_before_it_is_decided() -> None:
    """A bundle that was away for as long may hold it, and asks only when it is back."""
    desk, transaction = half()
    assert not desk.coordinator.wants_expiry(NOW + 400 * DAY)
    assert desk.silent(desk.coordinator.expire(NOW + 400 * DAY)) == 0
    desk.take_over()
    assert desk.fate(transaction, NOW + 400 * DAY) is State.PREPARED


def test_an_operators_decision_about_a_half_message_does_not_expire() -> None:
    desk, transaction = half()
    desk.end(transaction, State.PREPARED, PART)
    desk.do(desk.coordinator.resolve("h", True, NOW))
    desk.completed(transaction, 2)
    assert desk.silent(desk.coordinator.expire_half(NOW + 30 * DAY)) == 0


def test_records_of_participants_are_passed_over_and_later_ones_refused(desk: Desk) -> None:
    desk.coordinator.apply(b"done/" + b"00" * 16, b"whatever")
    desk.coordinator.apply(b"ref/" + b"00" * 16 + b"/1/1/0", None)
    with pytest.raises(LedgerMQError, match="a later version"):
        desk.coordinator.apply(b"later/x", b"")


def test_epochs_and_numbers_end_before_a_record_cannot_hold_them(desk: Desk) -> None:
    transaction = desk.init()
    with pytest.raises(InvalidRequest, match="numbers end"):
        desk.coordinator.outcome("t", transaction.epoch, NUMBER_MAX + 1, NOW)
    [entry] = desk.coordinator.entries()
    assert entry.value is not None
    newest = encode(replace(entry, value=replace(entry.value, number=NUMBER_MAX, state=State.ABORTED)))
    desk.coordinator.apply(newest.key, newest.value)
    with pytest.raises(InvalidRequest, match="numbers end"):
        desk.coordinator.resolve("t", False, NOW)
    last = encode(replace(entry, value=replace(entry.value, epoch=EPOCH_MAX)))
    desk.coordinator.apply(last.key, last.value)
    with pytest.raises(InvalidRequest, match="use another id"):
        desk.init()

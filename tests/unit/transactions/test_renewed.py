"""Transactions of Kafka's second protocol (KIP-890), decided without a broker: each has an epoch of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledgermq.errors import TransactionAborted, TransactionFenced, TransactionUnknown, Unavailable
from ledgermq.protocol.naming.producer_ids import KAFKA_EPOCH_MAX, kafka_producer_id
from ledgermq_broker.transactions.state.added.producers import Named, NotOpen
from ledgermq_broker.transactions.state.records import IdEntry, IdValue, decode, encode
from ledgermq_broker.transactions.state.types import Kind, Part, State, Transaction
from tests.unit.transactions.desks import NOW
from tests.unit.transactions.test_added import NOBODY, PLACES, KafkaDesk


class RenewedDesk(KafkaDesk):
    """A coordinator with one client of the second protocol."""

    def arrive(self, named: Named, bundle: int = 3) -> Transaction:
        """The first batch of a partition comes to a bundle."""
        return self.do(self.added.join("t", named, bundle, PLACES[0], "", NOW, adds=True))

    def end_by(self, named: Named, outcome: State = State.COMMITTED, *bundles: int) -> Named:
        found = self.added.to_end("t", named, outcome, renews=True)
        if found is not None:
            parts = [Part(bundle) for bundle in bundles]
            decision = self.added.end(*found, outcome, parts, NOW, renews=True)
            assert decision is not None
            assert self.do(decision) is outcome
        return self.added.holder("t")

    def whole(self, named: Named, outcome: State = State.COMMITTED) -> Named:
        transaction = self.arrive(named)
        after = self.end_by(named, outcome, 3)
        self.completed(transaction, 3)
        return after

    def restart(self, epoch: int) -> Named:
        """The id has this epoch."""
        known = self.coordinator._ids.known["t"]
        new = IdValue(known.producer_id, epoch, Kind.ORDINARY, known.timeout_ms, NOW)
        record = encode(IdEntry("t", new))
        self.log.append((record.key, record.value))
        self.coordinator.apply(record.key, record.value)
        return Named(known.producer_id, epoch)


@pytest.mark.parametrize("outcome", [State.COMMITTED, State.ABORTED])
def test_an_end_gives_the_producer_the_next_epoch(outcome: State) -> None:
    desk = RenewedDesk()
    first = desk.begin()
    assert desk.arrive(first) == Transaction("t", 5, first.producer_id, 1, 1)
    second = desk.end_by(first, outcome, 3)
    assert second == Named(first.producer_id, 2)
    desk.take_over()
    assert desk.added.holder("t") == second
    with pytest.raises(Unavailable):  # the first is not complete
        desk.arrive(second)
    desk.completed(Transaction("t", 5, first.producer_id, 1, 1), 3)
    assert desk.arrive(second) == Transaction("t", 5, first.producer_id, 2, 1)
    desk.take_over()
    assert desk.silent(desk.added.join("t", second, 3, PLACES[0], "", NOW, adds=True)).pair == (2, 1)
    assert desk.end_by(second, State.COMMITTED, 3) == Named(first.producer_id, 3)


def test_a_batch_adds_other_partitions_with_its_own() -> None:
    desk = RenewedDesk()
    named = desk.begin()
    desk.do(desk.added.join("t", named, 3, PLACES[0], "", NOW, adds=True, also=PLACES))
    assert set(desk.added.places("t")) == set(PLACES)
    desk.silent(desk.added.join("t", named, 3, PLACES[1], "", NOW, adds=True))


def test_what_was_sent_in_the_epoch_before_comes_into_no_transaction() -> None:
    desk = RenewedDesk()
    first = desk.begin()
    second = desk.whole(first)
    for _ in range(2):
        with pytest.raises(TransactionFenced):
            desk.arrive(first)
        with pytest.raises(TransactionFenced):
            desk.add(first)
        with pytest.raises(TransactionFenced):
            desk.added.to_end("t", first, State.ABORTED)  # of the first protocol
        desk.arrive(second)
        desk.take_over()


def test_a_repeated_end_gets_the_same_epoch_and_no_other_outcome() -> None:
    desk = RenewedDesk()
    first = desk.begin()
    transaction = desk.arrive(first)
    second = desk.end_by(first, State.COMMITTED, 3)
    assert desk.end_by(first) == second  # although it is not complete
    with pytest.raises(NotOpen):
        desk.end_by(first, State.ABORTED)
    desk.completed(transaction, 3)
    desk.take_over()
    assert desk.end_by(first) == second
    desk.arrive(second)
    with pytest.raises(TransactionFenced):
        desk.end_by(first)


def test_a_commit_of_nothing_is_refused_and_an_abort_of_nothing_ends_the_epoch() -> None:
    """What was sent and has no answer may come later: it must not begin a transaction."""
    desk = RenewedDesk()
    first = desk.begin()
    with pytest.raises(NotOpen):
        desk.end_by(first)
    second = desk.end_by(first, State.ABORTED)
    assert second == Named(first.producer_id, 2)
    assert desk.end_by(first, State.ABORTED) == second
    with pytest.raises(TransactionAborted):
        desk.arrive(first)
    with pytest.raises(NotOpen):
        desk.end_by(second)
    third = desk.end_by(second, State.ABORTED)
    assert third == Named(first.producer_id, 3)
    desk.take_over()
    assert desk.end_by(second, State.ABORTED) == third
    assert desk.arrive(third).pair == (3, 1)


@pytest.mark.parametrize("by", ["time-out", "operator"])
def test_after_an_abort_that_it_did_not_ask_for_a_producer_aborts_and_goes_on(by: str) -> None:
    desk = RenewedDesk()
    first = desk.begin(timeout_ms=5000)
    opened = desk.arrive(first)
    if by == "time-out":
        desk.loop_s += 5.0
        assert desk.added.overdue(NOW) == [opened]
        desk.fate(opened, NOW + 5000, Part(9))
    else:
        desk.do(desk.operators.resolve("t", commit=False, now_ms=NOW))
    desk.take_over()
    assert [(number, bundle) for _, number, _, bundle in desk.told()] == [(1, 3)], "its bundle hears of it at once"
    calls: list[Callable[[], object]] = [lambda: desk.arrive(first), lambda: desk.end_by(first)]
    for call in calls:
        with pytest.raises(TransactionAborted):
            call()
    second = desk.end_by(first, State.ABORTED)
    assert second == Named(first.producer_id, 2)
    desk.completed(opened, 3)
    assert desk.whole(second) == Named(first.producer_id, 3)


def test_an_operator_who_aborts_what_has_not_begun_keeps_the_outcome_before() -> None:
    desk = RenewedDesk()
    first = desk.begin()
    second = desk.whole(first)
    desk.do(desk.operators.resolve("t", commit=False, now_ms=NOW))
    assert desk.added.holder("t") == second
    assert desk.arrive(second).epoch == 2
    with pytest.raises(TransactionFenced):
        desk.end_by(first)


def test_another_producer_fences_the_epoch_that_was_given_out() -> None:
    desk = RenewedDesk()
    first = desk.begin()
    second = desk.whole(first)
    other = desk.begin()
    assert other == Named(first.producer_id, 3)
    for named in (first, second):
        with pytest.raises(TransactionFenced):
            desk.end_by(named, State.ABORTED)
        with pytest.raises(TransactionFenced):
            desk.begin(named)
    assert desk.begin(other) == Named(first.producer_id, 4)
    assert desk.begin(other) == Named(first.producer_id, 4)  # repeated


def test_a_producer_may_begin_anew_with_the_epoch_that_it_was_given() -> None:
    desk = RenewedDesk()
    second = desk.whole(desk.begin())
    assert desk.begin(second) == Named(second.producer_id, 3)


def test_a_producer_that_has_no_answer_to_its_end_may_begin_anew() -> None:
    """So franz-go does, which knows neither whether its transaction has ended, nor the next epoch."""
    desk = RenewedDesk()
    first = desk.begin()
    transaction = desk.arrive(first)
    desk.end_by(first, State.COMMITTED, 3)
    with pytest.raises(Unavailable):
        desk.begin(first)
    desk.completed(transaction, 3)
    for _ in range(2):  # the second one repeats it
        assert desk.begin(first) == Named(first.producer_id, 3)
    with pytest.raises(TransactionFenced):
        desk.begin(Named(first.producer_id, 2))


def test_after_the_last_epoch_of_kafka_an_end_gives_a_new_producer_id() -> None:
    desk = RenewedDesk()
    desk.begin()
    last_but_one = desk.restart(KAFKA_EPOCH_MAX)
    last = desk.whole(last_but_one)
    assert last == Named(last_but_one.producer_id, KAFKA_EPOCH_MAX + 1)
    fresh = desk.whole(last)
    assert fresh.epoch == 1
    assert fresh.producer_id != last.producer_id
    assert kafka_producer_id(fresh.producer_id) is not None
    desk.take_over()
    assert desk.end_by(last) == fresh  # repeated
    with pytest.raises(TransactionUnknown):
        desk.arrive(last)
    assert desk.arrive(fresh) == Transaction("t", 5, fresh.producer_id, 1, 1)
    with pytest.raises(TransactionUnknown):
        desk.end_by(last)


def test_a_client_may_change_its_protocol() -> None:
    desk = RenewedDesk()
    first = desk.begin()
    desk.add(first)
    desk.join(first, 3)
    desk.finish(first, State.COMMITTED, Part(3))
    desk.completed(Transaction("t", 5, first.producer_id, 1, 1), 3)
    with pytest.raises(NotOpen):  # it repeats nothing: the call of the first protocol has given no epoch
        desk.end_by(first)
    second = desk.begin(first)
    third = desk.whole(second)
    with pytest.raises(NotOpen):
        desk.added.to_end("t", third, State.COMMITTED)  # not the one of the epoch before
    desk.add(third)
    desk.join(third, 3)
    desk.finish(third, State.ABORTED, Part(3))
    assert desk.added.holder("t") == third, "the first protocol keeps the epoch"


def test_an_id_of_a_client_of_ours_goes_on_under_another_producer_id() -> None:
    desk = RenewedDesk()
    second = desk.whole(desk.begin())
    native = desk.init()
    assert native.producer_id != second.producer_id
    with pytest.raises(TransactionUnknown):
        desk.arrive(second)
    assert desk.begin(NOBODY).producer_id not in (native.producer_id, second.producer_id)


def test_the_record_keeps_under_which_id_the_producer_goes_on() -> None:
    known = IdValue(b"a" * 16, 7, Kind.ORDINARY, 1000, NOW, 1, State.COMMITTED)
    assert known.holder == (b"a" * 16, 7)
    for next_producer, holder in ((b"a" * 16, (b"a" * 16, 8)), (b"b" * 16, (b"b" * 16, 1))):
        value = IdValue(b"a" * 16, 7, Kind.ORDINARY, 1000, NOW, 1, State.COMMITTED, next_producer=next_producer)
        entry = IdEntry("t", value)
        record = encode(entry)
        assert decode(record.key, record.value) == entry
        assert value.holder == holder

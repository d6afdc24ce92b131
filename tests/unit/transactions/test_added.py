"""Transactions of Kafka clients, decided without a broker: what was added to them, their end, their sequences."""

from __future__ import annotations

import pytest

from ledgermq.errors import (
    DataDamaged,
    InvalidRequest,
    LedgerMQError,
    OutOfOrderSequence,
    SequencePassed,
    TransactionAborted,
    TransactionFenced,
    TransactionTooLarge,
    TransactionUnknown,
    Unavailable,
    UnknownProducer,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.producer_ids import KAFKA_EPOCH_MAX, kafka_producer_id, producer_bytes
from ledgermq_broker.transactions.state.added.producers import PLACES_MAX, Named, NotOpen
from ledgermq_broker.transactions.state.added.records import LastEntry, LastValue, encode
from ledgermq_broker.transactions.state.participating.completing import Completion
from ledgermq_broker.transactions.state.participating.intake import ToStage
from ledgermq_broker.transactions.state.types import Part, State, Stream, Transaction
from ledgermq_ledger.keys import PartitionId
from tests.unit.transactions.desks import NOW, Bundle, Desk, batch

NOBODY = Named(b"", 0)
PLACES = [PartitionId(7, 0), PartitionId(7, 1)]
STREAM = Stream(b"", 7, 0)


class KafkaDesk(Desk):
    """A coordinator with one Kafka client of one transactional id."""

    def serve(self) -> None:
        super().serve()
        self.added = self.coordinator.added

    def begin(self, named: Named = NOBODY, timeout_ms: int = 60_000) -> Named:
        found = self.do(self.added.init("t", timeout_ms, named, NOW))
        return Named(found.producer_id, found.epoch)

    def add(self, named: Named, *groups: str) -> Transaction:
        return self.do(self.added.add("t", named, PLACES, groups, NOW))

    def join(self, named: Named, bundle: int, place: PartitionId | None = PLACES[0], group: str = "") -> Transaction:
        return self.do(self.added.join("t", named, bundle, place, group, NOW))

    def finish(self, named: Named, outcome: State, *parts: Part) -> State:
        found = self.added.to_end("t", named, outcome)
        assert found is not None
        decision = self.added.end(*found, outcome, parts, NOW)
        assert decision is not None
        return self.do(decision)


def test_an_identity_can_be_said_in_kafka_and_its_first_epoch_is_zero_there() -> None:
    desk = KafkaDesk()
    first = desk.begin()
    assert kafka_producer_id(first.producer_id) is not None
    assert first.epoch == 1
    assert desk.begin() == Named(first.producer_id, 2)


def test_a_native_id_goes_on_under_a_new_producer_id() -> None:
    desk = KafkaDesk()
    native = desk.init()
    named = desk.begin()
    assert named.producer_id != native.producer_id
    assert kafka_producer_id(named.producer_id) is not None
    with pytest.raises(TransactionFenced):
        desk.end(native, State.COMMITTED)
    assert desk.fate(native, NOW) is State.ABORTED


def test_after_the_last_epoch_of_kafka_comes_a_new_producer_id() -> None:
    desk = KafkaDesk()
    named = desk.begin()
    for _ in range(KAFKA_EPOCH_MAX):
        named = desk.begin()
    assert named.epoch - 1 == KAFKA_EPOCH_MAX
    fresh = desk.begin(named)
    assert fresh.epoch == 1
    assert fresh.producer_id != named.producer_id
    assert desk.begin(named) == fresh  # repeated


def test_what_was_added_survives_a_takeover() -> None:
    desk = KafkaDesk()
    named = desk.begin()
    assert desk.add(named, "g").number == 1
    assert desk.join(named, 3).number == 1
    assert desk.silent(desk.added.join("t", named, 3, PLACES[1], "", NOW)).number == 1
    desk.take_over()
    assert desk.silent(desk.added.add("t", named, PLACES, ["g"], NOW)).number == 1
    assert desk.join(named, 4, None, "g").number == 1
    with pytest.raises(NotOpen):
        desk.join(named, 4, None, "h")
    with pytest.raises(NotOpen):
        desk.join(named, 4, PartitionId(8, 0))
    found = desk.added.to_end("t", named, State.COMMITTED)
    assert found is not None
    assert found[1].bundles == {3, 4}
    assert found[0] == Transaction("t", 5, named.producer_id, 1, 1)


def test_a_bundle_that_joins_while_others_are_counted_puts_the_end_off() -> None:
    """Otherwise its batches would be acknowledged, and left out of the commit."""
    desk = KafkaDesk()
    named = desk.begin()
    desk.add(named)
    desk.join(named, 3)
    found = desk.added.to_end("t", named, State.COMMITTED)
    assert found is not None
    desk.join(named, 4)
    assert desk.added.end(*found, State.COMMITTED, [Part(3)], NOW) is None


def test_nothing_is_added_while_an_abort_is_incomplete() -> None:
    """Otherwise a bundle could stage the next transaction under the number of the aborted one."""
    desk = KafkaDesk()
    named = desk.begin()
    desk.add(named)
    for bundle in (3, 4):
        desk.join(named, bundle)
    desk.finish(named, State.ABORTED, Part(3), Part(4))
    assert desk.told() == [("t", 1, State.ABORTED, 3), ("t", 1, State.ABORTED, 4)]
    for missing in (3, 4):
        with pytest.raises(Unavailable):
            desk.add(named)
        with pytest.raises(Unavailable):
            desk.added.to_end("t", named, State.ABORTED)
        desk.completed(Transaction("t", 5, named.producer_id, 1, 1), missing)
    assert desk.added.to_end("t", named, State.ABORTED) is None
    with pytest.raises(NotOpen):
        desk.added.to_end("t", named, State.COMMITTED)
    assert desk.add(named).number == 2
    desk.take_over()
    assert desk.silent(desk.added.add("t", named, PLACES, [], NOW)).number == 2


def test_parts_with_offsets_are_completed_last() -> None:
    desk = KafkaDesk()
    named = desk.begin()
    desk.add(named, "g")
    for bundle in (3, 4, 5):
        desk.join(named, bundle)
    part = {STREAM: 1}
    desk.finish(named, State.COMMITTED, Part(3, part), Part(4, part, ("g",)), Part(5, part))
    assert [bundle for *_, bundle in desk.told()] == [3, 5]
    transaction = Transaction("t", 5, named.producer_id, 1, 1)
    desk.completed(transaction, 3)
    assert [bundle for *_, bundle in desk.told()] == [5]
    desk.take_over()
    assert [bundle for *_, bundle in desk.told()] == [5]
    desk.completed(transaction, 5)
    assert [bundle for *_, bundle in desk.told()] == [4]


@pytest.mark.parametrize("by", ["time-out", "outcome", "operator", "bundle"])
def test_an_abort_that_the_client_did_not_ask_for_fences_it(by: str) -> None:
    desk = KafkaDesk()
    named = desk.begin(timeout_ms=5000)
    desk.add(named)
    opened = desk.join(named, 3)
    assert desk.added.overdue(NOW) == []
    if by == "time-out":
        desk.loop_s += 5.0
        assert desk.added.overdue(NOW) == [opened]
        desk.fate(opened, NOW + 5000, Part(9))
    elif by == "bundle":
        desk.fate(opened, NOW + 5000)
    elif by == "outcome":
        desk.do(desk.producers.outcome("t", 1, 1, NOW))
    else:
        desk.do(desk.operators.resolve("t", commit=False, now_ms=NOW))
    for call in (lambda: desk.add(named), lambda: desk.join(named, 3), lambda: desk.begin(named)):
        with pytest.raises(TransactionFenced):
            call()
    with pytest.raises(TransactionFenced):
        desk.added.to_end("t", named, State.COMMITTED)
    assert desk.fate(opened, NOW) is State.ABORTED
    assert desk.do(desk.producers.outcome("t", 1, 1, NOW)).state is State.ABORTED
    desk.take_over()
    assert desk.added.open_count == 0
    again = desk.begin()
    assert (again.producer_id, again.epoch) == (named.producer_id, 3)
    assert desk.add(again).number == 1


def test_a_time_out_begins_again_with_a_new_coordinator() -> None:
    desk = KafkaDesk()
    named = desk.begin(timeout_ms=5000)
    desk.add(named)
    desk.loop_s += 4.0
    desk.take_over()
    desk.loop_s += 4.0
    assert desk.added.overdue(NOW) == []
    desk.loop_s += 1.0
    assert len(desk.added.overdue(NOW)) == 1


def test_an_open_transaction_is_shown_and_keeps_its_id() -> None:
    desk = KafkaDesk()
    named = desk.begin()
    desk.add(named)
    [info] = desk.operators.infos(open_only=True)
    assert (info.transaction.transactional_id, info.state) == ("t", pb.UNDECIDED)
    year = 366 * 24 * 3600 * 1000
    assert not desk.expiry.wants_expiry(NOW + year)


def test_bounds_and_strangers() -> None:
    desk = KafkaDesk()
    named = desk.begin()
    many = [PartitionId(7, number) for number in range(PLACES_MAX + 1)]
    with pytest.raises(TransactionTooLarge):
        desk.added.add("t", named, many, [], NOW)
    with pytest.raises(TransactionUnknown):
        desk.added.add("t", Named(producer_bytes(1), 1), PLACES, [], NOW)
    with pytest.raises(TransactionUnknown):
        desk.added.add("other", named, PLACES, [], NOW)
    for timeout_ms in (0, 10**9):
        with pytest.raises(InvalidRequest):
            desk.added.init("t", timeout_ms, NOBODY, NOW)


# In a bundle

KAFKA = Transaction("t", 5, producer_bytes(7), 1, 1)


class KafkaBundle(Bundle):
    def send(self, sequence: int, records: int = 2, transaction: Transaction = KAFKA) -> LedgerMQError | None:
        sent: ToStage = batch(sequence, records=records)
        staging = self.do(self.participant.by_records.stage(transaction, sent, self.end, NOW))
        self.end += sum(sent.record_count for _ in staging.new)
        [result] = staging.results
        return result

    def open_number(self, place: PartitionId = PLACES[0]) -> int:
        return self.participant.by_records.open_number(KAFKA.producer_id, KAFKA.epoch, place)

    def over(self, transaction: Transaction = KAFKA, *, commit: bool = True) -> None:
        counts = self.participant.by_records.counts(transaction)
        if not commit:
            assert self.complete(State.ABORTED, Part(2), transaction=transaction) is Completion.DONE
            return
        assert self.complete(State.COMMITTED, Part(2, counts), transaction=transaction) is Completion.RETRY
        while (chunk := self.completing.next_chunk(transaction.producer_id)) is not None:
            assert self.do(self.completing.admit(chunk))
            self.take_over()

    def take_over(self) -> None:
        before = dict(self.participant._state.last)
        super().take_over()
        assert self.participant._state.last == before


@pytest.mark.parametrize("commit", [True, False])
def test_sequences_go_on_over_transactions(commit: bool) -> None:
    bundle = KafkaBundle()
    assert isinstance(bundle.send(2), UnknownProducer)
    for sequence in range(0, 10, 2):
        assert bundle.send(sequence) is None
        assert bundle.send(sequence) is None
    assert bundle.participant.by_records.counts(KAFKA) == {STREAM: 5}
    assert isinstance(bundle.send(12), OutOfOrderSequence)
    assert isinstance(bundle.send(3), OutOfOrderSequence)
    assert isinstance(bundle.send(4, records=3), OutOfOrderSequence)
    assert list(bundle.participant._state._rows) == [KAFKA.producer_id]
    bundle.take_over()
    assert bundle.open_number() == 0  # its coordinator is asked, once in a term
    bundle.participant.by_records.note_open(*KAFKA[2:])
    assert bundle.open_number() == 1
    assert bundle.open_number(PLACES[1]) == 0
    bundle.over(commit=commit)
    assert bundle.open_number() == 0
    assert not bundle.participant._state._rows  # nor does the end of one look at those of all others
    with pytest.raises(TransactionAborted):
        bundle.send(10)
    second = KAFKA._replace(number=2)
    assert isinstance(bundle.send(8, transaction=second), SequencePassed)
    assert isinstance(bundle.send(12, transaction=second), OutOfOrderSequence)
    assert bundle.send(10, transaction=second) is None
    bundle.over(second, commit=not commit)
    bundle.take_over()
    assert bundle.send(12, transaction=KAFKA._replace(number=5)) is None
    later = KAFKA._replace(epoch=2)
    assert isinstance(bundle.send(14, transaction=later), UnknownProducer)
    assert bundle.send(0, transaction=later) is None


def test_a_batch_behind_a_refused_one_at_the_wrap_is_a_gap() -> None:
    """Sequences of Kafka go on with 0 after 2³¹ - 1. The batch with 0 is no double of the first one: its client would
    take it for stored.
    """
    bundle = KafkaBundle()
    before = encode(LastEntry(KAFKA.producer_id, LastValue(KAFKA, {PLACES[0]: 2**31 - 1})))
    bundle.participant.apply(before.key, bytes(before.value or b""))
    second = KAFKA._replace(number=2)
    assert type(bundle.send(0, transaction=second)) is OutOfOrderSequence  # SequencePassed counts as stored
    assert bundle.send(2**31 - 1, records=1, transaction=second) is None
    assert bundle.send(0, transaction=second) is None
    assert bundle.send(0, transaction=second) is None
    assert bundle.participant.by_records.counts(second) == {STREAM: 2}


def test_an_abort_of_nothing_staged_keeps_late_batches_out() -> None:
    bundle = KafkaBundle()
    bundle.over(commit=False)
    bundle.take_over()
    with pytest.raises(TransactionAborted):
        bundle.send(0)
    assert bundle.send(0, transaction=KAFKA._replace(number=2)) is None


def test_what_a_given_up_transaction_has_staged_is_not_taken_for_the_open_one() -> None:
    """An operator gives up its part in a bundle that lacks a batch; what else is there stays until the bundle asks.
    A batch of the next transaction that was staged under the old number would be acknowledged, and lost.
    """
    bundle = KafkaBundle()
    bundle.participant.by_records.note_open(*KAFKA[2:])
    bundle.send(0)
    assert bundle.open_number() == 1
    with pytest.raises(DataDamaged):
        bundle.complete(State.COMMITTED, Part(2, {STREAM: 2}), transaction=KAFKA)
    assert bundle.open_number() == 0
    second = KAFKA._replace(number=2)
    bundle.participant.by_records.note_open(*second[2:])
    assert isinstance(bundle.send(2, transaction=second), UnknownProducer)


def test_what_is_known_of_a_producer_goes_with_its_id() -> None:
    bundle = KafkaBundle()
    bundle.send(0)
    bundle.over(commit=False)
    assert bundle.upkeep.notes() == [KAFKA]
    bundle.do(bundle.upkeep.forget(KAFKA._replace(number=9)))
    assert bundle.upkeep.notes() == [KAFKA]
    bundle.do(bundle.upkeep.forget(KAFKA))
    bundle.take_over()
    assert bundle.upkeep.notes() == []
    assert bundle.participant._state.last == {}

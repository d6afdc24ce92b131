"""Random lives of a producer of the Kafka protocol, its coordinator and two bundles: what is committed is visible once,
in order; nothing else ever is. Batches come late and twice, answers are lost, owners change, times run out.

The states are the product's; the network and the client are the test's. Each planted bug is one rule of
docs/design.md (X21, X22, X24) that is broken.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from ledgermq.errors import LedgerMQError, RetriableError, SequencePassed
from ledgermq_broker.transactions.state.added.by_records import ByRecords
from ledgermq_broker.transactions.state.added.ids import AddedIds
from ledgermq_broker.transactions.state.added.producers import AddedProducers, Named
from ledgermq_broker.transactions.state.coordinating.served_ids import ServedIds
from ledgermq_broker.transactions.state.participating.completing import Completion
from ledgermq_broker.transactions.state.participating.intake import ToStage
from ledgermq_broker.transactions.state.types import Part, State, Transaction
from ledgermq_ledger.keys import PartitionId
from tests.unit.transactions.desks import NOW, Bundle, Desk

SEEDS = 60
STEPS = 250
TIMEOUT_MS = 5000
PLACES = [PartitionId(7, 0), PartitionId(7, 1)]
BUNDLES = (2, 3)
"""The place with number i is in bundle i."""


@dataclass
class Sent:
    """A batch on its way. `number`: of its transaction, once the bundle has asked for it."""

    named: Named
    place: int
    sequence: int
    values: list[str]
    number: int = 0


@dataclass
class Client:
    named: Named = field(default_factory=lambda: Named(b"", 0))
    sequences: list[int] = field(default_factory=lambda: [0, 0])
    is_open: bool = False
    acked: list[tuple[int, int, list[str]]] = field(default_factory=list)
    """(place, sequence, values)"""
    waiting: list[Sent] = field(default_factory=list)


class Life:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.desk = Desk()
        self.bundles = [Bundle() for _ in BUNDLES]
        self.values: list[dict[int, list[str]]] = [{}, {}]
        """What lies in `__staged` of each bundle, by offset."""
        self.visible: list[list[str]] = [[], []]
        self.committed: list[list[str]] = [[], []]
        self.late: list[Sent] = []
        self.client = Client()
        self.made = 0

    def run(self) -> None:
        self.begin()
        steps: list[Callable[[], None]] = [self.add, self.send, self.send, self.retry, self.end, self.complete]
        steps += [self.complete, self.arrive_late, self.take_over, self.time_out, self.ask]
        for _ in range(STEPS):
            self.random.choice(steps)()
            self.check()
        while self.late:
            self.arrive_late()
        for _ in range(50):
            self.complete()
            self.ask(everything=True)
        self.check()
        assert self.visible == self.committed, "not all that was committed is visible"

    def check(self) -> None:
        for seen, committed in zip(self.visible, self.committed, strict=True):
            assert seen == committed[: len(seen)], f"{seen[-5:]} is visible, {committed[-5:]} were committed"

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    # The client

    def begin(self) -> None:
        """Begin a new epoch; what was under way is aborted."""
        try:
            found = self.desk.do(self.desk.coordinator.added.init("t", TIMEOUT_MS, Named(b"", 0), NOW))
        except RetriableError:
            self.complete()
            return
        self.client = Client(Named(found.producer_id, found.epoch))

    def fenced(self) -> None:
        self.late += self.client.waiting
        self.begin()

    def add(self) -> None:
        client = self.client
        if client.waiting:
            return
        try:
            self.desk.do(self.desk.coordinator.added.add("t", client.named, PLACES, [], NOW))
        except RetriableError:
            return
        except LedgerMQError:
            self.fenced()
            return
        client.is_open = True

    def send(self) -> None:
        client = self.client
        if not client.is_open or len(client.waiting) > 3:
            return
        place = self.random.randrange(2)
        values = [f"{self.made}.{row}" for row in range(self.random.choice((1, 1, 3)))]
        self.made += 1
        sent = Sent(client.named, place, client.sequences[place], values)
        client.sequences[place] += len(values)
        client.waiting.append(sent)
        self.deliver(sent)

    def retry(self) -> None:
        for sent in list(self.client.waiting):
            if sent in self.client.waiting:
                self.deliver(sent)

    def deliver(self, sent: Sent) -> None:
        """Deliver a batch, now or later, once or twice; its answer may be lost."""
        if self.chance(0.2):
            self.late.append(Sent(sent.named, sent.place, sent.sequence, sent.values))
        if self.chance(0.2):
            return
        error = self.arrive(sent)
        if self.chance(0.2) or sent not in self.client.waiting:
            return
        if error is None or isinstance(error, SequencePassed):
            self.client.waiting.remove(sent)
            self.client.acked.append((sent.place, sent.sequence, sent.values))
        elif not _comes_again(error):
            self.fenced()

    def end(self) -> None:
        client = self.client
        if not client.is_open or (client.waiting and self.chance(0.8)):
            return
        outcome = State.COMMITTED if not client.waiting and self.chance(0.7) else State.ABORTED
        added = self.desk.coordinator.added
        try:
            found = added.to_end("t", client.named, outcome)
            assert found is not None
            transaction, opened = found
            parts = [self.counted(transaction, bundle, outcome) for bundle in sorted(opened.bundles)]
            decision = added.end(transaction, opened, outcome, parts, NOW)
        except RetriableError:
            return
        except LedgerMQError:
            self.fenced()
            return
        assert decision is not None
        self.desk.do(decision)
        if outcome is State.COMMITTED:
            for place, _, values in sorted(client.acked):
                self.committed[place] += values
        client.acked, client.is_open = [], False
        self.late += client.waiting
        if client.waiting:  # clients whose batches have no answer begin a new epoch
            self.begin()

    def counted(self, transaction: Transaction, bundle: int, outcome: State) -> Part:
        if not outcome.is_commit:
            return Part(bundle)
        return Part(bundle, self.bundles[BUNDLES.index(bundle)].participant.by_records.counts(transaction))

    # The bundles

    def arrive_late(self) -> None:
        if self.late:
            self.arrive(self.late.pop(self.random.randrange(len(self.late))))

    def arrive(self, sent: Sent) -> LedgerMQError | None:
        """A batch arrives. The bundle asks for its number, and may stage it a while later."""
        bundle, place = self.bundles[sent.place], PLACES[sent.place]
        by_records = bundle.participant.by_records
        try:
            number = by_records.open_number(*sent.named, place) or sent.number
            if not number:
                joined = self.desk.coordinator.added.join("t", sent.named, BUNDLES[sent.place], place, "", NOW)
                number = self.desk.do(joined).number
                by_records.note_open(*sent.named, number)
            if self.chance(0.1):
                self.late.append(Sent(sent.named, sent.place, sent.sequence, sent.values, number))
                return RetriableError("no answer")
            transaction = Transaction("t", self.desk.coordinator.partition, *sent.named, number)
            rows = len(sent.values)
            batch = ToStage(*place, sent.sequence, rows, 100, hash(tuple(sent.values)) & 0xFFFF, 1, 2)
            staging = bundle.do(by_records.stage(transaction, batch, bundle.end, NOW))
        except LedgerMQError as error:
            return error
        if staging.new:
            self.values[sent.place][bundle.end] = sent.values
            bundle.end += rows
        return staging.results[0]

    def complete(self) -> None:
        """A decision comes to one bundle; what it says twice changes nothing."""
        told = self.desk.coordinator.bundles.to_complete()
        if not told:
            return
        transaction, state, part = self.random.choice(told)
        if self.completed(transaction, state, part) and self.chance(0.8):
            self.desk.completed(transaction, part.bundle)

    def completed(self, transaction: Transaction, state: State, part: Part) -> bool:
        at = BUNDLES.index(part.bundle)
        bundle = self.bundles[at]
        own = Part(2, part.counts)  # the unit's bundle has this number
        if bundle.complete(state, own, transaction=transaction) is Completion.RETRY:
            while (chunk := bundle.completing.next_chunk(transaction.producer_id)) is not None:
                assert bundle.do(bundle.completing.admit(chunk))
                for reference in chunk.references:
                    self.visible[at] += self.values[at][reference.offset]
        return True

    def ask(self, *, everything: bool = False) -> None:
        """Bundles ask about what they have staged."""
        for bundle in self.bundles if everything else [self.random.choice(self.bundles)]:
            for transaction, part in bundle.upkeep.to_ask(NOW, -(2**62)):
                if self.desk.fate(transaction, NOW, part) is State.ABORTED:
                    bundle.complete(State.ABORTED, Part(2), transaction=transaction)

    def take_over(self) -> None:
        if self.chance(0.5):
            self.desk.take_over()
        else:
            self.random.choice(self.bundles).take_over()

    def time_out(self) -> None:
        self.desk.loop_s += self.random.choice((0.1, 1.0, 3.0))
        for transaction in self.desk.coordinator.added.overdue(NOW):
            self.desk.do(self.desk.coordinator.bundles.fate(transaction, Part(9), NOW))


def _comes_again(error: LedgerMQError) -> bool:
    """Return whether the client sends the batch again: what is behind a lost one is refused as a gap."""
    return error.code in ("RETRIABLE", "UNAVAILABLE", "OUT_OF_ORDER_SEQUENCE", "UNKNOWN_PRODUCER") or isinstance(
        error, RetriableError
    )


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_random_lives(first: int) -> None:
    for seed in range(first, first + 20):
        try:
            Life(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


# Planted bugs


def sequences_begin_anew(patch: pytest.MonkeyPatch) -> None:
    def any_sequence(self: ByRecords, transaction: Transaction, stream: object, batch: ToStage) -> int:
        return self._state.rows(transaction, stream).batches  # type: ignore[arg-type]

    patch.setattr(ByRecords, "_numbered", any_sequence)


def an_abort_has_no_parts(patch: pytest.MonkeyPatch) -> None:
    end = AddedProducers.end

    def without(self: AddedProducers, transaction, opened, outcome, parts, now_ms):  # type: ignore[no-untyped-def]
        decision = end(self, transaction, opened, outcome, parts, now_ms)
        if decision is None or outcome.is_commit:
            return decision
        for bundle in opened.bundles:  # complete at once, unheard by bundles
            more = self._bundles.completed(transaction, bundle, now_ms)
            decision.records.extend(more.records)
        return decision

    patch.setattr(AddedProducers, "end", without)


def a_time_out_keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AddedIds, "decide", ServedIds.decide)


def a_bundle_does_not_join(patch: pytest.MonkeyPatch) -> None:
    join = AddedProducers.join

    def first_only(self: AddedProducers, name, named, bundle, place, group, now_ms):  # type: ignore[no-untyped-def]
        known = self._ids.open.get(name)
        at = next(iter(known.bundles)) if known is not None and known.bundles else bundle
        return join(self, name, named, at, place, group, now_ms)

    patch.setattr(AddedProducers, "join", first_only)


@pytest.mark.parametrize(
    "plant",
    [
        sequences_begin_anew,
        an_abort_has_no_parts,
        a_time_out_keeps_the_epoch,
        a_bundle_does_not_join,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_caught(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(_fails(seed) for seed in range(200)), "no life saw it"


def _fails(seed: int) -> bool:
    try:
        Life(seed).run()
    except AssertionError:
        return True
    return False

"""A random life of a producer of the Kafka protocol, its coordinator and two bundles. The states are the product's; the
network and the client are the test's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ledgermq.errors import LedgerMQError, RetriableError, SequencePassed, TransactionAborted
from ledgermq_broker.transactions.state.added.producers import Named
from ledgermq_broker.transactions.state.participating.completing import Completion
from ledgermq_broker.transactions.state.participating.intake import ToStage
from ledgermq_broker.transactions.state.types import Part, State, Transaction
from ledgermq_ledger.keys import PartitionId
from tests.unit.transactions.desks import NOW, Bundle, Desk

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
    has_sent: bool = False
    must_abort: bool = False
    ending: State | None = None
    """How it ends its transaction, while it has no answer."""
    acked: list[tuple[int, int, list[str]]] = field(default_factory=list)
    """(place, sequence, values)"""
    waiting: list[Sent] = field(default_factory=list)


class Life:
    """`second`: the client speaks the second protocol."""

    def __init__(self, seed: int, *, second: bool = False) -> None:
        self.second = second
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
        if self.second:
            client.is_open = True
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
        if not client.is_open or client.must_abort or client.ending is not None or len(client.waiting) > 3:
            return
        client.has_sent = True
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
        elif self.second and isinstance(error, TransactionAborted):
            self.client.must_abort = True
        elif not _comes_again(error):
            self.fenced()

    def end(self) -> None:
        client = self.client
        if not client.is_open or (client.waiting and self.chance(0.8)) or (self.second and not client.has_sent):
            return
        outcome = client.ending
        if outcome is None:
            commits = not client.waiting and not client.must_abort and self.chance(0.7)
            outcome = State.COMMITTED if commits else State.ABORTED
        try:
            self.decide(outcome)
        except RetriableError:
            return
        except LedgerMQError as error:
            client.ending = None
            if self.second and isinstance(error, TransactionAborted):
                client.must_abort = True
            else:
                self.fenced()
            return
        if self.second and self.chance(0.2):  # its answer is lost, so the call is repeated
            client.ending = outcome
            return
        client.acked, client.is_open = [], False
        self.late += client.waiting
        if self.second:  # what was sent and has no answer belongs to the epoch before
            self.client = Client(self.desk.coordinator.added.holder("t"))
        elif client.waiting:  # clients whose batches have no answer begin a new epoch
            self.begin()

    def decide(self, outcome: State) -> None:
        added, client = self.desk.coordinator.added, self.client
        found = added.to_end("t", client.named, outcome, renews=self.second)
        if found is None:
            aborted = outcome is State.ABORTED  # at its time-out
            assert aborted or client.ending is outcome, "only a repeated call finds its transaction decided"
            return
        transaction, opened = found
        parts = [self.counted(transaction, bundle, outcome) for bundle in sorted(opened.bundles)]
        decision = added.end(transaction, opened, outcome, parts, NOW, renews=self.second)
        assert decision is not None
        self.desk.do(decision)
        if outcome is State.COMMITTED:
            for place, _, values in sorted(client.acked):
                self.committed[place] += values

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
                at = sent.named, BUNDLES[sent.place], place, "", NOW
                number = self.desk.do(self.desk.coordinator.added.join("t", *at, adds=self.second)).number
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

"""A coordinator with its log, and a participant with its log, as units of tests."""

from __future__ import annotations

from typing import TypeVar

from ledgermq.errors import (
    LedgerMQError,
)
from ledgermq_broker.transactions.state.coordinating.producers import Identity
from ledgermq_broker.transactions.state.coordinator import Coordinator
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_broker.transactions.state.participant import Participant
from ledgermq_broker.transactions.state.participating.completing import Chunk, Completion
from ledgermq_broker.transactions.state.participating.intake import Staging, ToStage
from ledgermq_broker.transactions.state.types import Kind, Part, State, Stream, Transaction
from ledgermq_ledger.log.log_record import Decision

T = TypeVar("T")

NOW = 1_700_000_000_000
DAY = 24 * 3600 * 1000
STREAM = Stream(b"", 7, 0)
PART = Part(2, {STREAM: 3})
OTHER = Part(3, {Stream(b"", 7, 1): 1}, ("g",))


A, B = b"a" * 16, b"b" * 16
TX = Transaction("t", 5, A, 1, 1)


def nxt(transaction: Transaction) -> Transaction:
    return transaction._replace(number=transaction.number + 1)


class Desk:
    """A coordinator and its log."""

    def __init__(self, limits: TransactionLimits | None = None) -> None:
        self.limits = limits or TransactionLimits()
        self.drawn = 0
        self.loop_s = 0.0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.serve()

    def serve(self) -> None:
        self.coordinator = Coordinator(5, self.limits, self.new_id, lambda: self.loop_s)
        self.producers, self.bundles = self.coordinator.producers, self.coordinator.bundles
        self.half_messages, self.operators = self.coordinator.half_messages, self.coordinator.operators
        self.expiry = self.coordinator.expiry

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
        self.serve()
        for key, value in self.log:
            self.coordinator.apply(key, value)
        self.coordinator.start()
        assert self.coordinator.entries() == before

    def init(self, name: str = "t", kind: Kind = Kind.ORDINARY, now_ms: int = NOW) -> Transaction:
        """Return the first transaction of the new epoch."""
        group = "checkers" if kind is Kind.HALF_MESSAGE else ""
        identity: Identity = self.do(self.producers.init(name, kind, 0, group, now_ms))
        return Transaction(name, identity.coordinator, identity.producer_id, identity.epoch, 1)

    def end(self, transaction: Transaction, outcome: State, *parts: Part, now_ms: int = NOW) -> State:
        return self.do(self.producers.end(transaction, outcome, parts, now_ms))

    def fate(self, transaction: Transaction, now_ms: int, part: Part = PART) -> State:
        """The loop's clock goes on as the wall clock does."""
        self.loop_s = max(self.loop_s, (now_ms - NOW) / 1000)
        return self.do(self.bundles.fate(transaction, part, now_ms))

    def completed(self, transaction: Transaction, *bundles: int) -> None:
        for bundle in bundles:
            self.do(self.bundles.completed(transaction, bundle, NOW))

    def told(self) -> list[tuple[str, int, State, int]]:
        return [
            (transaction.transactional_id, transaction.number, state, part.bundle)
            for transaction, state, part in self.bundles.to_complete()
        ]


def half() -> tuple[Desk, Transaction]:
    desk = Desk()
    return desk, desk.init("h", Kind.HALF_MESSAGE)


def batch(sequence: int, *, partition: int = 0, crc: int = 0, records: int = 2, length: int = 100) -> ToStage:
    return ToStage(7, partition, sequence, records, length, crc or 1000 + sequence, 1, 2)


class Bundle:
    """A participant, its log, and the end of `__staged`."""

    def __init__(self, limits: TransactionLimits | None = None) -> None:
        self.limits = limits or TransactionLimits(chunk_bytes=200)
        self.serve()
        self.log: dict[bytes, bytes | None] = {}
        self.end = 0
        self.groups: set[str] = set()

    def serve(self) -> None:
        self.participant = Participant(2, self.limits)
        self.intake, self.completing = self.participant.intake, self.participant.completing
        self.upkeep = self.participant.upkeep

    def do(self, decision: Decision[T]) -> T:
        for record in reversed(decision.records):
            self.log.pop(record.key, None)
            self.log[record.key] = record.value
        return decision.answer

    def silent(self, decision: Decision[T]) -> T:
        assert decision.records == []
        return decision.answer

    def take_over(self) -> None:
        before = self.participant.entries(), self.participant.lowest_offset(), self.participant.staged_bytes
        self.serve()
        for key, value in self.log.items():
            if value is not None:
                self.participant.apply(key, value)
        assert (self.participant.entries(), self.participant.lowest_offset(), self.participant.staged_bytes) == before

    def stage(
        self, *batches: ToStage, transaction: Transaction = TX, branch: bytes = b"", now_ms: int = NOW
    ) -> list[LedgerMQError | None]:
        staging: Staging = self.do(self.intake.stage(transaction, branch, batches, self.end, now_ms))
        self.end += sum(batches[index].record_count for index in staging.new)
        return staging.results

    def complete(
        self, outcome: State, part: Part, *, transaction: Transaction = TX, confirmed: bool = True
    ) -> Completion:
        return self.do(
            self.completing.complete(
                transaction, outcome, part, confirmed=confirmed, groups_pending=self.groups.__contains__
            )
        )

    def commit(self, count: int, *, transaction: Transaction = TX) -> None:
        self.complete(State.COMMITTED, Part(2, {STREAM: count}), transaction=transaction)
        self.finish(transaction)

    def finish(self, transaction: Transaction = TX) -> list[Chunk]:
        made: list[Chunk] = []
        while (chunk := self.completing.next_chunk(transaction.producer_id)) is not None:
            assert self.do(self.completing.admit(chunk))
            made.append(chunk)
        return made

    def refs(self) -> list[bytes]:
        return [key for key, value in self.log.items() if key.startswith(b"ref/") and value is not None]

"""A coordinator and bundles for random lives of transactions: logs, replays, and what must hold
after each decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from ledgermq.errors import TransactionError
from ledgermq_broker.transactions.state.coordinator import Coordinator
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_broker.transactions.state.participant import Participant
from ledgermq_broker.transactions.state.participating.completing import Chunk, Completion
from ledgermq_broker.transactions.state.participating.intake import ToStage
from ledgermq_broker.transactions.state.participating.upkeep import CarryItem
from ledgermq_broker.transactions.state.records import IdEntry, decode
from ledgermq_broker.transactions.state.types import Part, Reference, State, Stream, Transaction
from ledgermq_ledger.log.log_record import Decision, LogRecord

T = TypeVar("T")

GROUP = "g"
BUNDLES = (1, 2)
LIMITS = TransactionLimits(
    timeout_ms=100,
    timeout_ms_max=100,
    expiry_ms=1000,
    half_expiry_ms=1000,
    chunk_bytes=20,
    ask_after_ms=50,
    check_after_ms=20,
    check_every_ms=30,
    checks_max=3,
    carry_after_ms=30,
)
BATCH_BYTES = 10


class Log:
    """The records of one core, and the newest of each key as compaction leaves them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.latest: dict[bytes, bytes | None] = {}

    def append(self, records: Sequence[LogRecord]) -> None:
        """Records of one decision have no order of their own."""
        for record in self.random.sample(list(records), len(records)):
            self.latest.pop(record.key, None)
            self.latest[record.key] = record.value

    def replay(self, core: Coordinator | Participant) -> None:
        for key, value in self.latest.items():
            if value is not None or self.random.random() < 0.5:
                core.apply(key, value)


class CoordinatorDesk:
    """`truth`: (producer id, epoch, number) -> is it committed; what is there never changes."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.log = Log(random)
        self.truth: dict[Transaction, bool] = {}
        self.counted: dict[Transaction, tuple[Part, ...]] = {}
        self.acknowledged: dict[tuple[Transaction, Stream, int], int] = {}
        """CRC of each batch that was acknowledged to a producer."""
        self.drawn = 0
        self.loop_s = 0.0
        self.coordinator = self._new()

    def _new(self) -> Coordinator:
        return Coordinator(0, LIMITS, self._new_id, lambda: self.loop_s)

    def _new_id(self) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(16)

    def run(self, decision: Decision[T]) -> T:
        self.log.append(decision.records)
        for record in decision.records:
            entry = decode(record.key, record.value)
            assert isinstance(entry, IdEntry)
            known = entry.value
            if known is None or not known.number:
                continue
            transaction = Transaction(entry.transactional_id, 0, known.producer_id, known.epoch, known.number)
            if not known.state.is_final:
                self.counted[transaction] = known.parts
                continue
            assert self.truth.setdefault(transaction, known.state.is_commit) == known.state.is_commit
            if known.state.is_commit and len(known.missing) == len(known.parts) and not known.complete:
                self.counted[transaction] = known.parts
        return decision.answer

    def take_over(self, now_ms: int) -> None:
        before = self.coordinator.entries()
        self.coordinator = self._new()
        self.log.replay(self.coordinator)
        self.coordinator.start()
        assert self.coordinator.entries() == before


class BundleDesk:
    """One bundle: what is staged, visible, and pending of one group."""

    def __init__(self, bundle: int, desk: CoordinatorDesk, random: Random) -> None:
        self.bundle, self.desk, self.random = bundle, desk, random
        self.log = Log(random)
        self.participant = Participant(bundle, LIMITS)
        self.bytes: dict[int, int] = {}
        """Offset in `__staged` -> the batch's CRC."""
        self.end = 0
        self.shown: dict[tuple[Transaction, Stream], list[int]] = {}
        self.last_shown: dict[bytes, tuple[int, int]] = {}
        self.pending: set[Transaction] = set()
        self.settled: list[Transaction] = []

    def run(self, decision: Decision[T]) -> T:
        self.log.append(decision.records)
        return decision.answer

    def take_over(self) -> None:
        before = self.participant.entries()
        lowest = self.participant.lowest_offset()
        self.participant = Participant(self.bundle, LIMITS)
        self.log.replay(self.participant)
        assert self.participant.entries() == before
        assert self.participant.lowest_offset() == lowest

    def write(self, references: Sequence[tuple[int, int]]) -> None:
        """Append (record count, CRC) to `__staged`."""
        for record_count, crc in references:
            self.bytes[self.end] = crc
            self.end += record_count

    def trim(self) -> None:
        lowest = self.participant.lowest_offset()
        self.bytes = {offset: crc for offset, crc in self.bytes.items() if lowest is not None and offset >= lowest}

    def read(self, references: Sequence[Reference]) -> None:
        for reference in references:
            assert self.bytes.get(reference.offset) == reference.crc, "a reference names other bytes"

    def stage(self, transaction: Transaction, branch: bytes, batches: Sequence[ToStage], now_ms: int) -> list[bool]:
        staging = self.run(self.participant.intake.stage(transaction, branch, batches, self.end, now_ms))
        self.write([(batches[index].record_count, batches[index].crc) for index in staging.new])
        return [error is None for error in staging.results]

    def stage_offset(self, transaction: Transaction) -> None:
        self.participant.intake.check_open(transaction)
        self.pending.add(transaction)

    def is_pending(self, transaction: Transaction, group: str) -> bool:
        return group == GROUP and transaction in self.pending

    def settle(self, transaction: Transaction, groups: Sequence[str]) -> None:
        if groups:
            assert transaction in self.pending
            assert self.desk.truth[transaction]
            self.settled.append(transaction)
        self.pending = {
            other
            for other in self.pending
            if other.producer_id != transaction.producer_id or other.pair > transaction.pair
        }

    def complete(self, transaction: Transaction, outcome: State, part: Part, confirmed: bool = False) -> Completion:
        done = self.run(
            self.participant.completing.complete(
                transaction,
                outcome,
                part,
                confirmed=confirmed,
                groups_pending=lambda group: self.is_pending(transaction, group),
            )
        )
        if done is Completion.DONE:
            self.settle(transaction, ())
        return done

    def complete_and_confirm(self, transaction: Transaction, outcome: State, part: Part) -> Completion:
        done = self.complete(transaction, outcome, part)
        if done is not Completion.UNSURE:
            return done
        if self.desk.coordinator.bundles.confirm(transaction) is not State.COMMITTED:
            return Completion.DONE
        return self.complete(transaction, outcome, part, confirmed=True)

    def admit(self, chunk: Chunk) -> bool:
        """`chunk` may be old."""
        decision = self.participant.completing.admit(chunk)
        if decision.answer:
            self.run(decision)
            self.show(chunk)
            if chunk.is_last:
                self.settle(chunk.transaction, chunk.groups)
        return decision.answer

    def show(self, chunk: Chunk) -> None:
        transaction = chunk.transaction
        assert self.desk.truth.get(transaction) is True, "what is not committed becomes visible"
        counts = {stream: count for part in self.desk.counted[transaction] for stream, count in part.counts.items()}
        assert transaction.pair >= self.last_shown.get(transaction.producer_id, (0, 0)), "out of order"
        self.last_shown[transaction.producer_id] = transaction.pair
        order = [(ref.stream.topic_id, ref.stream.partition, ref.stream.branch) for ref in chunk.references]
        assert order == sorted(order)
        for reference in chunk.references:
            shown = self.shown.setdefault((transaction, reference.stream), [])
            assert reference.sequence == len(shown) < counts[reference.stream], "twice, out of order or not counted"
            acknowledged = self.desk.acknowledged.get((transaction, reference.stream, reference.sequence))
            assert acknowledged in (None, reference.crc), "another batch than the one that was acknowledged"
            shown.append(reference.crc)

    def housekeep(self, now_ms: int) -> None:
        asked = self.participant.upkeep.to_ask(now_ms)
        staged = {transaction for transaction, _ in asked}
        offsets = Part(self.bundle, groups=(GROUP,))
        asked += [(transaction, offsets) for transaction in sorted(self.pending) if transaction not in staged]
        for transaction, part in asked:
            if self.desk.run(self.desk.coordinator.bundles.fate(transaction, part, now_ms)) is not State.ABORTED:
                continue
            try:
                self.complete(transaction, State.ABORTED, replace(part, counts={}))
            except TransactionError:
                raise AssertionError("an abort is never refused") from None

    def carry(self, item: CarryItem, now_ms: int) -> None:
        decision = self.participant.upkeep.carry(item, self.end, now_ms)
        if decision.answer:
            self.run(decision)
            self.write([(reference.record_count, reference.crc) for reference in item.references])

"""Know what one bundle has staged and completes in one term, and how a decision changes it.

A completion that has begun is in memory only, until its first chunk is admitted; so a small one costs one
segment. If the owner dies before that, the next owner receives the call again. The first chunk puts the
note into the log, and a later owner resumes from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from ledgermq.errors import DataDamaged
from ledgermq.protocol.naming.producer_ids import kafka_producer_id
from ledgermq_broker.transactions.state.added.records import LAST, LastEntry, LastValue
from ledgermq_broker.transactions.state.added.records import decode as decode_added
from ledgermq_broker.transactions.state.added.records import encode as encode_added
from ledgermq_broker.transactions.state.checks import describe
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_broker.transactions.state.participating.staged import BundleState, Staged
from ledgermq_broker.transactions.state.records import NoteEntry, ReferencesEntry, encode
from ledgermq_broker.transactions.state.types import Part, Stream, Transaction
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord

NAMED_MAX = 5
"""Streams and groups that one error names."""

T = TypeVar("T")
Entries = list[ReferencesEntry | NoteEntry | LastEntry]


class Begun(NamedTuple):
    """A completion that has begun, and has no note in the log yet."""

    transaction: Transaction
    part: Part
    notes_gone: int


class Rows(NamedTuple):
    """How many batches of a stream are staged, and how many records they have."""

    batches: int
    total: int


class ServedBundle(BundleState):
    """`last`: by producer id, of those of the Kafka protocol."""

    def __init__(self, bundle: int, limits: TransactionLimits) -> None:
        super().__init__()
        self.bundle = bundle
        self.limits = limits
        self.notes_gone = 0
        """Number of notes that were forgotten in this term."""
        self.begun: dict[bytes, Begun] = {}
        """Producer id -> the commit of it that is being completed, without a note in the log."""
        self.carried_ms: dict[tuple[bytes, int, int, int], int] = {}
        """Key of a record of references -> when this owner carried its batches forward."""
        self.last: dict[bytes, LastValue] = {}
        self.open: dict[bytes, tuple[int, int]] = {}
        """Producer id of the Kafka protocol -> its open transaction, as its coordinator has said in this term."""
        self._rows: dict[bytes, dict[tuple[Transaction, Stream], Rows]] = {}
        """By producer id, until its next transaction ends here."""

    def apply(self, key: bytes, value: bytes | None) -> None:
        if not key.startswith(LAST):
            super().apply(key, value)
            return
        entry = decode_added(key, value)
        assert isinstance(entry, LastEntry)
        self._take_last(entry)

    def doing(self, producer_id: bytes) -> tuple[Transaction, Part] | None:
        """Return the commit of a producer that is being completed, and its part here."""
        begun = self.begun.get(producer_id)
        if begun is not None:
            return begun.transaction, begun.part
        note = self.notes.get(producer_id)
        if note is None or note.finished:
            return None
        assert note.part is not None
        return note.transaction, note.part

    def is_begun(self, transaction: Transaction) -> bool:
        doing = self.doing(transaction.producer_id)
        return doing is not None and doing[0].pair == transaction.pair

    def is_over(self, transaction: Transaction) -> bool:
        """Return True if this transaction, or a later one of its producer, was completed here."""
        note = self.notes.get(transaction.producer_id)
        return note is not None and transaction.pair <= note.transaction.pair and not self.is_begun(transaction)

    def check_counts(self, transaction: Transaction, part: Part, groups_pending: Callable[[str], bool]) -> None:
        staged = self.find(transaction) or Staged()
        copied = self.copied(transaction)
        missing = [
            f"{count} batches of partition {stream.topic_id}/{stream.partition}, but only the first {end} are there"
            for stream, count in part.counts.items()
            if (end := _end(staged, stream, copied.get(stream, 0))) < count
        ]
        missing += [f"offsets of group {group}" for group in part.groups if not groups_pending(group)]
        if missing:
            more = f"; and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
            raise DataDamaged(
                f"{describe(transaction)} is committed, but bundle {self.bundle} has not staged all that it counts: "
                f"{'; '.join(missing[:NAMED_MAX])}{more}; nothing was changed. Restore the bundle's ledger, "
                "or give up its part with `ledgermq transaction give-up`"
            )

    def dropped(self, transaction: Transaction, last: tuple[int, int]) -> Entries:
        """Return the entries that drop all that the producer has staged at or below the pair `last` (X5),
        under this transactional id. A call that names the producer id beside another id drops nothing of it.
        """
        return [
            ReferencesEntry(transaction.producer_id, *pair, n, None)
            for pair, staged in self.of_producer(transaction.producer_id).items()
            if pair <= last and staged.transaction[:2] == transaction[:2]
            for n in staged.records
        ]

    def is_after_end(self, transaction: Transaction) -> bool:
        """Return True if this transaction, or a later one, of a producer of the Kafka protocol has ended here."""
        last = self.last.get(transaction.producer_id)
        return last is not None and transaction.pair <= last.transaction.pair

    def ended(self, transaction: Transaction) -> Entries:
        """Return what to remember of a transaction that ends here, if its producer is one of the Kafka protocol, and
        unless it, or a later one, has ended already. Call it before anything of it is dropped.
        """
        if kafka_producer_id(transaction.producer_id) is None or self.is_after_end(transaction):
            return []
        after = dict(self.sequences(transaction))
        staged = self.find(transaction)
        for stream in staged.streams if staged is not None else ():
            place = PartitionId(stream.topic_id, stream.partition)
            after[place] = after.get(place, 0) + self.rows(transaction, stream).total
        return [LastEntry(transaction.producer_id, LastValue(transaction, after))]

    def sequences(self, transaction: Transaction) -> Mapping[PartitionId, int]:
        """Return the next sequences of the producer in this epoch, without those of the transaction."""
        last = self.last.get(transaction.producer_id)
        return last.next if last is not None and last.transaction.epoch == transaction.epoch else {}

    def rows(self, transaction: Transaction, stream: Stream) -> Rows:
        found = self.find(transaction)
        places = None if found is None else found.streams.get(stream)
        if not places:
            return Rows(0, 0)
        of_producer = self._rows.setdefault(transaction.producer_id, {})
        seen = of_producer.get((transaction, stream), Rows(0, 0))
        if seen.batches > len(places):
            seen = Rows(0, 0)
        more = sum(places[number].reference.record_count for number in range(seen.batches, len(places)))
        counted = of_producer[transaction, stream] = Rows(len(places), seen.total + more)
        return counted

    def _take_last(self, entry: LastEntry) -> None:
        if entry.value is None:
            self.last.pop(entry.producer_id, None)
        else:
            self.last[entry.producer_id] = entry.value
        self._rows.pop(entry.producer_id, None)

    def decided(self, entries: Entries, answer: T) -> Decision[T]:
        records: list[LogRecord] = []
        for entry in entries:
            if isinstance(entry, LastEntry):
                self._take_last(entry)
                records.append(encode_added(entry))
                continue
            self.take(entry)
            records.append(encode(entry))
            if isinstance(entry, ReferencesEntry) and entry.value is None:
                self.carried_ms.pop((entry.producer_id, entry.epoch, entry.number, entry.n), None)
        return Decision(records, answer)


def _end(staged: Staged, stream: Stream, copied: int) -> int:
    """Return how many batches of a stream, from the first, are visible or staged."""
    places = staged.streams.get(stream, {})
    while copied in places:
        copied += 1
    return copied

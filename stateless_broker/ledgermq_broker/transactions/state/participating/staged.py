"""Hold what a bundle has staged and completed: the fold of its participant's records.

The state is a map from keys to values. So the records of one decision may be applied in any order,
and a snapshot with the newest value of each key gives the same state. All other fields are derived
from the map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ledgermq.errors import DataDamaged
from ledgermq_broker.transactions.state.records import NoteEntry, NoteValue, ReferencesEntry, ReferencesValue, decode
from ledgermq_broker.transactions.state.types import Reference, Stream, Transaction
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL, SharedSum, Shares

_OF_OTHERS = (b"id/", b"open/", b"last/")


class Place(NamedTuple):
    """The reference of one batch, and the number `n` of the record that contains it."""

    n: int
    reference: Reference


@dataclass(slots=True)
class Staged:
    """What one transaction has staged in this bundle. `streams`: stream -> sequence -> place."""

    records: dict[int, ReferencesValue] = field(default_factory=dict)
    streams: dict[Stream, dict[int, Place]] = field(default_factory=dict)
    batches: int = 0
    size_bytes: int = 0
    next_n: int = 0
    """A number that no record has had. It is kept here because a transaction may have thousands of records."""
    principal: int = NO_PRINCIPAL
    """That of its first record, to whose share it counts as open."""

    @property
    def transaction(self) -> Transaction:
        return next(iter(self.records.values())).transaction

    @property
    def staged_ms(self) -> int:
        """Return when its oldest batch was staged."""
        return min(record.staged_ms for record in self.records.values())

    def counts(self) -> dict[Stream, int]:
        return {stream: len(places) for stream, places in self.streams.items()}

    def reference(self, stream: Stream, sequence: int) -> Reference | None:
        place = self.streams.get(stream, {}).get(sequence)
        return None if place is None else place.reference

    def principal_of(self, place: Place) -> int:
        """Return the principal that staged a batch."""
        return self.records[place.n].principal

    def put(self, n: int, value: ReferencesValue) -> None:
        self.remove(n)
        self.records[n] = value
        self.next_n = max(self.next_n, n + 1)
        for reference in value.references:
            places = self.streams.setdefault(reference.stream, {})
            if reference.sequence in places:
                raise DataDamaged(
                    f"{value.transaction} has two references of sequence {reference.sequence} of {reference.stream}"
                )
            places[reference.sequence] = Place(n, reference)
            self.batches += 1
            self.size_bytes += reference.length

    def remove(self, n: int) -> None:
        value = self.records.pop(n, None)
        if value is None:
            return
        for reference in value.references:
            places = self.streams[reference.stream]
            del places[reference.sequence]
            if not places:
                del self.streams[reference.stream]
            self.batches -= 1
            self.size_bytes -= reference.length


class StagedShares(NamedTuple):
    """What each principal has staged, of the three bounds of a bundle."""

    open: Shares
    batches: Shares
    size_bytes: Shares

    def add(self, value: ReferencesValue, sign: int = 1) -> None:
        """Count the batches of a record; with `sign` -1, those of a record that goes."""
        self.batches.add(value.principal, sign * len(value.references))
        self.size_bytes.add(value.principal, sign * sum(reference.length for reference in value.references))


class StagedDelayed:
    """What is staged of delayed batches: they wait for their due times from the commit on."""

    def __init__(self) -> None:
        self.batches = SharedSum("delayed_batches", "delayed batches")
        self.records = SharedSum("delayed_records", "delayed records")
        self.size_bytes = SharedSum("delayed_bytes", "delayed bytes")

    def add(self, value: ReferencesValue, sign: int = 1) -> None:
        """Count the delayed batches of a record; with `sign` -1, those of a record that goes."""
        for reference in value.references:
            if reference.stream.is_delayed:
                self.batches.add(value.principal, sign)
                self.records.add(value.principal, sign * reference.record_count)
                self.size_bytes.add(value.principal, sign * reference.length)


class BundleState:
    """`notes`: by producer id."""

    def __init__(self) -> None:
        self.notes: dict[bytes, NoteValue] = {}
        self._staged: dict[bytes, dict[tuple[int, int], Staged]] = {}
        """Producer id -> (epoch, number) -> what is staged."""
        self.open_count = 0
        self.size_bytes = 0
        self.batches = 0
        self.shares = StagedShares(
            Shares("open_transactions", "open transactions"),
            Shares("staged_batches", "staged batches"),
            Shares("staged_bytes", "staged bytes"),
        )
        self.delayed = StagedDelayed()

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log; those of coordinators, and of ended producers, have no effect.

        Raises DataDamaged, FormatNotSupported.
        """
        if not key.startswith(_OF_OTHERS):
            entry = decode(key, value)
            assert isinstance(entry, ReferencesEntry | NoteEntry)
            self.take(entry)

    def take(self, entry: ReferencesEntry | NoteEntry) -> None:
        if isinstance(entry, ReferencesEntry):
            self._take_references(entry)
        elif entry.value is None:
            self.notes.pop(entry.producer_id, None)
        else:
            self.notes[entry.producer_id] = entry.value

    def _take_references(self, entry: ReferencesEntry) -> None:
        of_producer = self._staged.setdefault(entry.producer_id, {})
        pair = (entry.epoch, entry.number)
        staged = of_producer.setdefault(pair, Staged())
        batches, size_bytes = staged.batches, staged.size_bytes
        was_open = bool(staged.records)
        if (before := staged.records.get(entry.n)) is not None:
            self.shares.add(before, -1)
            self.delayed.add(before, -1)
        if entry.value is None:
            staged.remove(entry.n)
        else:
            staged.put(entry.n, entry.value)
            self.shares.add(entry.value)
            self.delayed.add(entry.value)
        self._count_open(staged, entry.value, was_open=was_open)
        self.batches += staged.batches - batches
        self.size_bytes += staged.size_bytes - size_bytes
        if not staged.records:
            del of_producer[pair]
        if not of_producer:
            del self._staged[entry.producer_id]

    def _count_open(self, staged: Staged, value: ReferencesValue | None, *, was_open: bool) -> None:
        is_open = bool(staged.records)
        if is_open and not was_open and value is not None:
            staged.principal = value.principal
        self.open_count += is_open - was_open
        self.shares.open.add(staged.principal, is_open - was_open)

    def find(self, transaction: Transaction) -> Staged | None:
        return self._staged.get(transaction.producer_id, {}).get(transaction.pair)

    def of_producer(self, producer_id: bytes) -> Mapping[tuple[int, int], Staged]:
        return self._staged.get(producer_id, {})

    def all(self) -> Iterator[Staged]:
        for of_producer in self._staged.values():
            yield from of_producer.values()

    def copied(self, transaction: Transaction) -> Mapping[Stream, int]:
        """Return how many batches of each stream of the transaction are visible already."""
        note = self.notes.get(transaction.producer_id)
        return note.copied if note is not None and note.transaction.pair == transaction.pair else {}

    def alive(self, value: ReferencesValue) -> tuple[Reference, ...]:
        """Return the references of a record whose batches are not visible yet."""
        copied = self.copied(value.transaction)
        if not copied:
            return value.references
        return tuple(ref for ref in value.references if ref.sequence >= copied.get(ref.stream, 0))

    def entries(self) -> list[ReferencesEntry | NoteEntry]:
        """Return the whole state as entries of the log."""
        references: list[ReferencesEntry | NoteEntry] = [
            ReferencesEntry(producer_id, epoch, number, n, value)
            for producer_id, of_producer in sorted(self._staged.items())
            for (epoch, number), staged in sorted(of_producer.items())
            for n, value in sorted(staged.records.items())
        ]
        return references + [NoteEntry(producer_id, note) for producer_id, note in sorted(self.notes.items())]

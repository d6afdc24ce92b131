"""Measure a backlog: what lies between an offset of a partition and its end, in bytes and by age.

Bytes are those that are stored: of batches in segments, and of Parquet files above that. Where only a
part of a file or a batch counts, its bytes and its times are taken as spread evenly over its records.
What is in segments that the fetch index does not hold is taken to be like what it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.view.partition_index import PartitionIndex
from ledgermq_ledger.view.reader import LedgerReader


class Piece(NamedTuple):
    """Records from `first` up to, without, `end` that are stored together. Times are microseconds since the
    epoch.
    """

    first: int
    end: int
    size_bytes: int
    timestamp_min_us: int
    timestamp_max_us: int

    def between(self, first: int, end: int) -> Piece:
        """Return the part of the piece that lies between two offsets, of which some records are in it."""
        first, end = max(first, self.first), min(end, self.end)
        size_bytes = self.size_bytes * (end - first) // (self.end - self.first)
        return Piece(first, end, size_bytes, self.time_of(first), self.time_of(end))

    def time_of(self, offset: int) -> int:
        span_us = self.timestamp_max_us - self.timestamp_min_us
        return self.timestamp_min_us + span_us * (offset - self.first) // (self.end - self.first)

    def offset_at(self, timestamp_us: int) -> int:
        """Return the offset from which on records are of this time or later; the end if all are earlier."""
        if timestamp_us > self.timestamp_max_us:
            return self.end
        span_us = self.timestamp_max_us - self.timestamp_min_us
        passed_us = max(0, timestamp_us - self.timestamp_min_us)
        return self.first + (passed_us * (self.end - self.first) // span_us if span_us else 0)


@dataclass(frozen=True, slots=True)
class Backlog:
    """`older`: what is in Parquet, or in segments whose batches are not indexed; `batches`: the rest."""

    offset: int
    end: int
    older: Sequence[Piece]
    batches: PartitionIndex

    @property
    def size_bytes(self) -> int:
        newest = self.batches.size_bytes
        if len(self.batches) and self.batches.begin < self.offset:
            newest -= self.batches[0].length - _piece(self.batches, 0).between(self.offset, self.end).size_bytes
        return newest + sum(piece.size_bytes for piece in self.older)

    @property
    def oldest_us(self) -> int | None:
        """Return the time of the oldest record, about; None if there is no record."""
        first = next(self._pieces(), None)
        return None if first is None else first.timestamp_min_us

    def first_within(self, bytes_max: int | None, since_us: int | None) -> int:
        """Return the first offset from which on there are at most `bytes_max` bytes, and no record is older
        than `since_us`; None sets no bound.
        """
        by_size = by_age = self.offset
        surplus = 0 if bytes_max is None else self.size_bytes - bytes_max
        for piece in self._pieces():
            is_old = since_us is not None and by_age == piece.first and piece.timestamp_min_us < since_us
            if surplus <= 0 and not is_old:
                break
            if surplus > 0:
                count = piece.end - piece.first
                by_size = min(piece.end, piece.first - (-surplus * count // max(1, piece.size_bytes)))
                surplus -= piece.size_bytes
            if is_old:
                assert since_us is not None
                by_age = piece.offset_at(since_us)
        return max(by_size, by_age)

    def _pieces(self) -> Iterator[Piece]:
        yield from self.older
        for place in range(len(self.batches)):
            yield _piece(self.batches, place).between(self.offset, self.end)


def _piece(batches: PartitionIndex, place: int) -> Piece:
    batch = batches[place]
    return Piece(batch.base_offset, batch.end, batch.length, batch.timestamp_min_us, batch.timestamp_max_us)


async def backlog_from(reader: LedgerReader, key: PartitionId, offset: int) -> Backlog:
    """Return the backlog from `offset` on. Where it begins in Parquet, this reads the lists of files that
    are not in memory; otherwise it costs no request.

    Raises DataDamaged, Unavailable, the store's errors.
    """
    view = reader.view
    if view.has_older_segments and view.find(key, offset) is None:
        await view.load_all()
    end = view.readable_end(key)
    offset = max(offset, view.parquet_start(key), reader.log_start(key))
    if offset >= end:
        return Backlog(end, end, (), PartitionIndex())
    known = view.index.partitions.get(key, PartitionIndex())
    begin = known.begin if len(known) else end
    border = min(begin, view.parquet_end(key))
    older: list[Piece] = []
    if offset < border:
        for file in await reader.parquet_files(key, offset):
            if file.first_offset < border:
                times = (file.timestamp_min_us, file.timestamp_max_us)
                older.append(Piece(file.first_offset, file.last_offset + 1, file.size, *times).between(offset, border))
    first = max(offset, border)
    if first < begin and len(known):
        size_bytes = known.size_bytes * (begin - first) // (known.end - begin)
        older.append(Piece(first, begin, size_bytes, known[0].timestamp_min_us, known[0].timestamp_min_us))
    return Backlog(offset, end, older, known.between(max(offset, begin), end) if len(known) else known)

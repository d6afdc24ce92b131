"""Index the batches of one partition that need not be read from Parquet: one dense run of offsets. Compact: some 70
bytes a batch, and 200 for a partition. No I/O.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.segments.tag_summary import may_have

T = TypeVar("T")
Place = tuple[int, int]
"""A batch: its slot, and its position there."""
Masks = Sequence[int] | None
"""Those of the tags that a reader wants (`ledgermq_ledger.log.segments.tag_summary`); None: it wants all records."""
LOOKED_MAX = 10_000
"""So many batches are looked at, at most, to find those with a tag; it takes some milliseconds."""
FEW_MAX = 8
"""Most partitions have few batches, and for those nine arrays would take a kilobyte."""
_COLUMNS = "QIQQIIqqQ"
_ROW = struct.Struct(f"<{_COLUMNS}")
_SPAN = struct.Struct(f"<{_COLUMNS[:2]}")
_CELLS = tuple(
    struct.Struct(f"<{struct.calcsize(f'<{_COLUMNS[:at]}')}x{code}{struct.calcsize(f'<{_COLUMNS[at + 1 :]}')}x")
    for at, code in enumerate(_COLUMNS)
)
"""Each reads one column of the rows."""


class LeftOut(NamedTuple):
    """What a reader was not sent, because its filter leaves it out."""

    batches: int
    records: int
    size_bytes: int

    def and_(self, other: LeftOut) -> LeftOut:
        return LeftOut(*(one + two for one, two in zip(self, other, strict=True)))


NOTHING_LEFT_OUT = LeftOut(0, 0, 0)


class IndexedBatch(NamedTuple):
    base_offset: int
    record_count: int
    slot: int
    position: int
    length: int
    crc: int
    timestamp_min_us: int
    timestamp_max_us: int
    tag_summary: int = 0

    @property
    def end(self) -> int:
        return self.base_offset + self.record_count


def indexed(slot: int, entry: fmt.BatchEntry) -> IndexedBatch:
    return IndexedBatch(
        entry.base_offset,
        entry.record_count,
        slot,
        entry.position,
        entry.length,
        entry.crc,
        entry.timestamp_min_us,
        entry.timestamp_max_us,
        entry.tag_summary,
    )


class PartitionIndex:
    """The batches of one partition, ascending and dense: up to FEW_MAX of them in rows, more in columns. Both are
    those of IndexedBatch.
    """

    __slots__ = ("_columns", "_columns_bytes", "_rows")

    def __init__(self, batches: Iterable[IndexedBatch] = ()) -> None:
        self._rows = b""
        self._columns: tuple[array[int], ...] | None = None
        self._columns_bytes = 0
        """Length of all batches that are in columns."""
        for batch in batches:
            self.append(batch)

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size if self._columns is None else len(self._columns[0])

    def __getitem__(self, at: int) -> IndexedBatch:
        if self._columns is None:
            return IndexedBatch(*_ROW.unpack_from(self._rows, at * _ROW.size))
        bases, counts, slots, positions, lengths, crcs, earliest, latest, tags = self._columns
        return IndexedBatch(
            bases[at], counts[at], slots[at], positions[at], lengths[at], crcs[at], earliest[at], latest[at], tags[at]
        )

    def _column(self, number: int) -> Sequence[int]:
        if self._columns is None:
            return [value for (value,) in _CELLS[number].iter_unpack(self._rows)]
        return self._columns[number]

    def _in_columns(self) -> tuple[array[int], ...]:
        """Return the columns; from now on the batches are there."""
        if self._columns is None:
            self._columns_bytes = self.size_bytes
            self._columns = tuple(array(code, self._column(number)) for number, code in enumerate(_COLUMNS))
            self._rows = b""
        return self._columns

    @property
    def size_bytes(self) -> int:
        return sum(self._column(4)) if self._columns is None else self._columns_bytes

    @property
    def begin(self) -> int:
        """Return the first offset; only if there are batches."""
        return self[0].base_offset

    @property
    def end(self) -> int:
        if self._columns is None:
            base_offset, record_count = _SPAN.unpack_from(self._rows, -_ROW.size)
            return int(base_offset + record_count)
        return self._columns[0][-1] + self._columns[1][-1]

    def append(self, batch: IndexedBatch) -> None:
        assert not len(self) or batch.base_offset == self.end, (batch, self.end)
        if self._columns is None and len(self._rows) < FEW_MAX * _ROW.size:
            self._rows += _ROW.pack(*batch)
        else:
            for column, value in zip(self._in_columns(), batch, strict=True):
                column.append(value)
            self._columns_bytes += batch.length

    def between(self, first: int, end: int) -> PartitionIndex:
        """Return a copy of the batches that hold offsets from `first` up to, without, `end`."""
        bases = self._column(0)
        begin, stop = max(0, bisect_right(bases, first) - 1), bisect_left(bases, end)
        if begin < stop and self[begin].end <= first:
            begin += 1
        return self._part(begin, stop)

    def _part(self, begin: int, stop: int) -> PartitionIndex:
        part = PartitionIndex()
        if self._columns is None:
            part._rows = self._rows[begin * _ROW.size : stop * _ROW.size]
        elif stop - begin > FEW_MAX:
            part._columns = tuple(column[begin:stop] for column in self._columns)
            part._columns_bytes = sum(part._columns[4])
        else:
            part._rows = b"".join(_ROW.pack(*self[at]) for at in range(begin, stop))
        return part

    def among(self, held: Mapping[Place, T]) -> dict[Place, T]:
        """Return the held bytes of these batches."""
        places = zip(self._column(2), self._column(3), strict=True) if held else ()
        return {place: held[place] for place in places if place in held}

    def cuts(self, batches_max: int, bytes_max: int) -> Iterator[int]:
        """Yield offsets at which to cut, so that no piece has more batches, nor more bytes unless
        it is one batch.
        """
        sizes = array("Q", accumulate(self._column(4), initial=0))
        at = 0
        while True:
            fits = bisect_right(sizes, sizes[at] + bytes_max) - 1
            at = max(at + 1, min(at + batches_max, fits))
            if at >= len(self):
                return
            yield self[at].base_offset

    def extents(self) -> Iterator[tuple[int, int, int]]:
        """Yield (slot, position, length) for each slot, from its first batch to the end of its last
        one.
        """
        slots, positions, lengths = self._column(2), self._column(3), self._column(4)
        first = 0
        while first < len(slots):
            end = bisect_right(slots, slots[first], first)
            yield slots[first], positions[first], positions[end - 1] + lengths[end - 1] - positions[first]
            first = end

    def extend(self, more: PartitionIndex) -> None:
        assert not len(self) or not len(more) or more.begin == self.end, (more.begin, self.end)
        if self._columns is None and more._columns is None and len(self) + len(more) <= FEW_MAX:
            self._rows += more._rows
        else:
            for number, column in enumerate(self._in_columns()):
                column.extend(more._column(number))
            self._columns_bytes += more.size_bytes

    def at(self, offset: int) -> int | None:
        """Return the place of the batch that holds `offset`; None if it is below `begin` or not
        below `end`.
        """
        place = bisect_right(self._column(0), offset) - 1
        if place < 0 or offset >= self.end:
            return None
        return place

    def wanted(self, place: int, masks: Masks) -> Iterable[int]:
        """Return the places from `place` on of batches that may have one of the tags, ascending. Not more than
        LOOKED_MAX places are looked at.
        """
        if masks is None:
            return range(place, len(self))
        summaries = self._column(8)
        end = min(len(self), place + LOOKED_MAX)
        return (at for at in range(place, end) if may_have(summaries[at], masks))

    def past_unwanted(self, offset: int, masks: Masks) -> int:
        """Skip batches that surely lack the tags. Return the offset at which to go on."""
        place = self.at(offset)
        if masks is None or place is None:
            return offset
        looked = min(len(self), place + LOOKED_MAX)
        found = next(iter(self.wanted(place, masks)), looked)
        return max(offset, self[found].base_offset if found < len(self) else self.end)

    def size_between(self, first: int, end: int) -> LeftOut:
        """Return how much lies between two offsets: in batches of the index that have some of them."""
        bases, counts, lengths = self._column(0), self._column(1), self._column(4)
        begin, stop = max(0, bisect_right(bases, first) - 1), bisect_left(bases, end)
        if first >= end or begin >= stop:
            return NOTHING_LEFT_OUT
        return LeftOut(stop - begin, sum(counts[begin:stop]), sum(lengths[begin:stop]))

    def first_at_or_after(self, timestamp_us: int, place: int) -> int | None:
        """Return the place of the first batch, from `place` on, that holds a record of this time or
        later.
        """
        latest = self._column(7)
        return next((at for at in range(place, len(latest)) if latest[at] >= timestamp_us), None)

    def place_of_slot(self, slot: int) -> int:
        """Return how many batches are below `slot`."""
        return bisect_left(self._column(2), slot)

    def slots_from(self, place: int) -> Sequence[int]:
        return self._column(2)[place:]

    def size_from(self, place: int) -> int:
        return self.size_bytes if place == 0 else sum(self._column(4)[place:])

    def drop_first(self, count: int) -> int:
        """Drop the oldest `count` batches; return `count`."""
        if count and self._columns is not None and len(self) - count > FEW_MAX:
            self._columns_bytes -= sum(self._columns[4][:count])
            for column in self._columns:
                del column[:count]
        elif count:
            kept = self._part(count, len(self))
            self._rows, self._columns = kept._rows, None
        return count

"""Index where each batch of a bundle is that need not be read from Parquet: per partition, by
offset.

Only valid, durable segments are added, in ledger order. So each partition's entries are one dense
run of offsets that ends at the high watermark. Records below the begin of the run are in Parquet or
in segments that were not loaded (`covered_from` is the slot from which on all are). Compact: some 70
bytes a batch, and 200 for a partition. When `batches_max` is reached, the oldest slots are dropped, and
`covered_from` moves up. No I/O.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.moves import key_of
from ledgermq_ledger.log.segments.tag_summary import may_have

T = TypeVar("T")
Place = tuple[int, int]
"""A batch: its slot, and its position there."""
Span = tuple[int, int]
"""Offsets of a partition from the first up to, without, the second."""
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
Wanted = Callable[[PartitionId], bool]
"""Whether a partition's batches are to take memory."""


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


def _entry(topic_id: int, partition: int, batch: IndexedBatch) -> fmt.BatchEntry:
    return fmt.BatchEntry(
        topic_id=topic_id,
        partition=partition,
        base_offset=batch.base_offset,
        record_count=batch.record_count,
        position=batch.position,
        length=batch.length,
        crc=batch.crc,
        timestamp_min_us=batch.timestamp_min_us,
        timestamp_max_us=batch.timestamp_max_us,
        tag_summary=batch.tag_summary,
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


def far_indexes(
    segments: Iterable[fmt.SegmentIndex], spans: Mapping[PartitionId, Span], beyond_max: int
) -> dict[PartitionId, PartitionIndex]:
    """Index the batches inside each partition's span (at least one for each partition), and up to
    `beyond_max` batches past the spans, counted across all partitions.
    """
    found = {key: PartitionIndex() for key in spans}
    for index in segments:
        if beyond_max <= 0 and all(len(part) and part.end >= spans[key][1] for key, part in found.items()):
            break  # every span is whole, and there is no room for what follows
        for opened in index.opens:
            if key_of(opened) in found:
                found[key_of(opened)] = PartitionIndex()
        for entry in index.batches:
            key = PartitionId(entry.topic_id, entry.partition)
            if key not in spans or entry.base_offset + entry.record_count <= spans[key][0]:
                continue
            if entry.base_offset >= spans[key][1]:
                if beyond_max <= 0 and len(found[key]):
                    continue
                beyond_max -= 1
            found[key].append(indexed(index.slot, entry))
    return found


class FetchIndex:
    """`wanted`: only these partitions are indexed; None: all."""

    def __init__(self, batches_max: int, covered_from: int, wanted: Wanted | None = None) -> None:
        self.batches_max = batches_max
        self.covered_from = covered_from
        self.wanted = wanted
        self.batches = 0
        self.partitions: dict[PartitionId, PartitionIndex] = {}
        self._slots: deque[tuple[int, int]] = deque()
        """(slot, batches in it), to know which is dropped first."""
        self._created_ms: dict[int, int] = {}

    def wanted_of(self, index: fmt.SegmentIndex) -> Sequence[fmt.BatchEntry]:
        """Return the batches of wanted partitions in a segment."""
        if (wanted := self.wanted) is None:
            return index.batches
        return [entry for entry in index.batches if wanted(PartitionId(entry.topic_id, entry.partition))]

    def has_room_for(self, segments: Iterable[fmt.SegmentIndex]) -> bool:
        return self.batches + sum(len(self.wanted_of(index)) for index in segments) <= self.batches_max

    def add(self, index: fmt.SegmentIndex, keys: Sequence[PartitionId] | None = None) -> None:
        """Add the next valid segment. `keys`: the partitions of its batches, if the caller holds them and all are
        wanted.
        """
        for opened in index.opens:  # what the index has is of an earlier stay in this ledger
            self.batches -= len(self.partitions.pop(key_of(opened), ()))
        batches = self.wanted_of(index)
        if keys is None:
            keys = [PartitionId(entry.topic_id, entry.partition) for entry in batches]
        for entry, key in zip(batches, keys, strict=True):
            partition = self.partitions.get(key)
            if partition is None:
                partition = self.partitions[key] = PartitionIndex()
            partition.append(indexed(index.slot, entry))
        if batches:
            self._slots.append((index.slot, len(batches)))
            self._created_ms[index.slot] = index.created_ms
            self.batches += len(batches)
            if self.batches > self.batches_max:
                self._drop_oldest()

    def prepend(self, segments: Iterable[fmt.SegmentIndex], covered_from: int) -> None:
        """Add valid segments from slot `covered_from` on; those that are covered already are
        skipped.
        """
        older: dict[PartitionId, PartitionIndex] = {}
        slots = []
        for index in segments:
            if index.slot >= self.covered_from:
                break
            batches = self.wanted_of(index)
            slots.append((index.slot, len(batches)))
            self._created_ms[index.slot] = index.created_ms
            for opened in index.opens:
                older.pop(key_of(opened), None)
            for entry in batches:
                key = PartitionId(entry.topic_id, entry.partition)
                older.setdefault(key, PartitionIndex()).append(indexed(index.slot, entry))
        for key, partition in older.items():
            known = self.partitions.get(key)
            if known and partition.end != known.begin:
                continue  # the partition left in between, and came back
            self.batches += len(partition)
            for place in range(len(known) if known else 0):
                assert known is not None
                partition.append(known[place])
            self.partitions[key] = partition
        self._slots.extendleft(reversed(slots))
        self.covered_from = min(covered_from, self.covered_from)
        if self.batches > self.batches_max:
            self._drop_oldest()

    def backlog(self, key: PartitionId, parquet_end: int) -> tuple[int, int] | None:
        """Return (bytes, time of the oldest segment in ms) of the batches here that are not in
        Parquet; None if there are none.
        """
        partition = self.partitions.get(key)
        if partition is None or partition.end <= parquet_end:
            return None
        place = partition.at(parquet_end) or 0
        return partition.size_from(place), self.created_ms(partition[place].slot)

    def first_slot(self, at_least: int) -> int | None:
        """Return the oldest slot that is here, holds records and is not below `at_least`."""
        return next((slot for slot, _ in self._slots if slot >= at_least), None)

    def slot_of(self, key: PartitionId, offset: int) -> int:
        """Return the slot of the first batch of the partition, among those here, that reaches
        beyond `offset`.
        """
        partition = self.partitions[key]
        return partition[partition.at(offset) or 0].slot

    def behind(self, key: PartitionId, offset: int) -> tuple[set[int], int]:
        """Return (slots, bytes) of the partition's batches here at or above `offset`."""
        partition = self.partitions.get(key)
        if partition is None or partition.end <= offset:
            return set(), 0
        place = partition.at(offset) or 0
        return set(partition.slots_from(place)), partition.size_from(place)

    def find(self, key: PartitionId, offset: int) -> tuple[PartitionIndex, int] | None:
        """Return the partition's index and the place in it of the batch that holds `offset`."""
        partition = self.partitions.get(key)
        place = partition.at(offset) if partition else None
        return None if partition is None or place is None else (partition, place)

    def segments_with(self, topic_id: int, ends: Mapping[int, int]) -> list[fmt.SegmentIndex]:
        """Return the batches of these partitions (`ends`: from which offset on), as the indexes of
        their segments.
        """
        found: dict[int, list[tuple[int, IndexedBatch]]] = {}
        for partition, end in ends.items():
            index = self.partitions.get(PartitionId(topic_id, partition))
            if index is not None and index.end > end:
                for place in range(index.at(end) or 0, len(index)):
                    found.setdefault(index[place].slot, []).append((partition, index[place]))
        segments = []
        for slot in sorted(found):
            batches = sorted(found[slot], key=lambda batch: batch[1].position)
            segments.append(
                fmt.SegmentIndex(
                    slot=slot, batches=[_entry(topic_id, partition, batch) for partition, batch in batches]
                )
            )
        return segments

    def created_ms(self, slot: int) -> int:
        """Return when a segment in the index was made, by its writer's clock."""
        return self._created_ms[slot]

    def drop_below(self, slot: int) -> None:
        """Drop the slots below `slot`: their records are in Parquet, or will be looked up again."""
        while self._slots and self._slots[0][0] < slot:
            dropped, _ = self._slots.popleft()
            del self._created_ms[dropped]
        self.covered_from = max(self.covered_from, slot)
        for key in list(self.partitions):
            partition = self.partitions[key]
            self.batches -= partition.drop_first(partition.place_of_slot(slot))
            if not len(partition):
                del self.partitions[key]

    def _drop_oldest(self) -> None:
        """Drop a tenth, in whole slots; the newest slot always stays."""
        left = self.batches
        slot = 0
        for slot, count in self._slots:  # noqa: B007 – the slot at which it stops is the first one kept
            if left <= self.batches_max - self.batches_max // 10:
                break
            left -= count
        self.drop_below(slot)

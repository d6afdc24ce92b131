"""Index where each batch of a bundle is that need not be read from Parquet: per partition, by
offset.

Only valid, durable segments are added, in ledger order. So each partition's entries are one dense
run of offsets that ends at the high watermark. Records below the begin of the run are in Parquet or
in segments that were not loaded (`covered_from` is the slot from which on all are). Compact: some 70
bytes a batch, and 200 for a partition. When `batches_max` is reached, the oldest slots are dropped, and
`covered_from` moves up. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.moves import key_of
from ledgermq_ledger.view.partition_index import IndexedBatch, PartitionIndex, indexed

Span = tuple[int, int]
"""Offsets of a partition from the first up to, without, the second."""
Wanted = Callable[[PartitionId], bool]
"""Whether a partition's batches are to take memory."""


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

"""Read what internal topics hold now, for the broker that takes over their bundle: the latest
record of each key, from snapshot and tail.

The live keys bound the cost. One GET reads the snapshot of all topics, which holds nothing else.
One more GET reads each run of batches of these topics in a later segment: the partitions of a topic
are adjacent, and so are topics unless much data lies between them. Several GETs run at a time. The
owner makes a new snapshot before such segments are many (`ledgermq_ledger.log.internal_topic.is_internal_due`).
Memory never holds more than the live keys and one window of the tail. A damaged batch affects only
its partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ledgermq.buffers import KIB
from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.runtime.reread import Rereads
from ledgermq_broker.bundle.reading.owned_ledger import OwnedLedger
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.snapshot import InternalRecord, records_of
from ledgermq_ledger.log.internal_topic import decode_internal, read_snapshot
from ledgermq_ledger.log.segments.segment import whose_damage
from ledgermq_ledger.object_store.contract import ObjectMissing
from ledgermq_ledger.topics.topic import Topic

ATTEMPTS_MAX = 5
WINDOW_SEGMENTS = 64
GAP_BYTES_MAX = 64 * KIB
"""Up to so many bytes between two runs of batches are read with them."""

Wanted = Sequence[tuple[Topic, Sequence[int]]]
"""Internal topics, each with its wanted partitions."""


@dataclass(slots=True)
class LatestRecords:
    """Latest records of one partition: `records` ascending by offset, without tombstones, each with
    the key of the object that holds it.
    """

    records: list[tuple[InternalRecord, str]] = field(default_factory=list)
    damage: DataDamaged | FormatNotSupported | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Batches of wanted partitions in one segment: one run of bytes, ascending by position."""

    slot: int
    entries: list[fmt.BatchEntry]


class _Fold:
    """Fold of one partition, from offset 0 on: `end` is the next offset that it needs."""

    def __init__(self, end: int, records: Iterable[InternalRecord], key: str) -> None:
        self.end = end
        self.damage: DataDamaged | None = None
        self._latest = {record.key: (record, key) for record in records}

    def add(self, entry: fmt.BatchEntry, data: memoryview, key: str) -> None:
        if self.damage is not None or entry.base_offset + entry.record_count <= self.end:
            return
        try:
            if entry.base_offset > self.end:
                raise DataDamaged(
                    f"{key}: its batch begins at offset {entry.base_offset}, the one before ends at {self.end}",
                    object_key=key,
                )
            for record in decode_internal(data, entry, key):
                if record.value is None:
                    self._latest.pop(record.key, None)
                else:
                    self._latest[record.key] = (record, key)
            self.end = entry.base_offset + entry.record_count
        except DataDamaged as damage:
            self.damage = damage

    def result(self) -> LatestRecords:
        if self.damage is not None:
            return LatestRecords(damage=self.damage)
        return LatestRecords(sorted(self._latest.values(), key=lambda located: located[0].offset))


async def read_internal_state(owned: OwnedLedger, wanted: Wanted) -> dict[PartitionId, LatestRecords]:
    """Read the partitions up to the current high watermark.

    Raises Unavailable, the store's errors; damage is in the results.
    """
    rereads = Rereads(
        ATTEMPTS_MAX,
        f"bundle {owned.bundle}: its snapshots changed during each attempt to read them; retry later",
        retry_after_ms=200,
    )
    while True:
        rereads.begin()
        known = owned.view.checkpoint.number
        try:
            found = await _read(owned, wanted)
            if found is not None:
                return found
        except (
            ObjectMissing
        ) as missing:  # trimmed, or in a newer snapshot: start again from that, because a tombstone may have left both
            await owned.view.look_for(missing, known)
        except (DataDamaged, FormatNotSupported) as damage:
            return {place: LatestRecords(damage=damage) for place in _places(wanted)}


def _places(wanted: Wanted) -> Iterator[PartitionId]:
    for topic, partitions in wanted:
        for partition in partitions:
            yield PartitionId(topic.id, partition)


async def _read(owned: OwnedLedger, wanted: Wanted) -> dict[PartitionId, LatestRecords] | None:
    """Read once; return None if a newer checkpoint was made meanwhile."""
    store, checkpoint = owned.context.store, owned.view.checkpoint
    ends = {place: owned.view.durable_end(place) for place in _places(wanted)}
    snapshot = await read_snapshot(store, checkpoint)
    snapshot_key = keys.snapshot(owned.bundle, checkpoint.snapshot_plan)
    folds = {place: _Fold(*records_of(snapshot, *place), snapshot_key) for place in ends}
    del snapshot
    pieces = await _tail(owned, folds)
    if owned.view.checkpoint.number != checkpoint.number:
        return None
    for first in range(0, len(pieces), WINDOW_SEGMENTS):
        window = pieces[first : first + WINDOW_SEGMENTS]
        found = await asyncio.gather(*(_get(owned, piece) for piece in window))
        for piece, data in zip(window, found, strict=True):
            await _take_in(owned, piece, data, folds)
            await asyncio.sleep(0)
    names = {topic.id: topic.name for topic, _ in wanted}
    for place, fold in folds.items():
        if fold.damage is None and fold.end < ends[place]:
            fold.damage = DataDamaged(
                f"bundle {owned.bundle}: offset {fold.end} of {names[place.topic_id]}/{place.partition}"
                " is in no segment"
            )
    return {place: fold.result() for place, fold in folds.items()}


async def _tail(owned: OwnedLedger, folds: Mapping[PartitionId, _Fold]) -> list[_Piece]:
    """Return the pieces of the segments behind the snapshot that hold records of these partitions,
    in order of slots: from the owner's index, or else from the store.
    """
    segments: list[fmt.SegmentIndex] = []
    if owned.view.index.covered_from <= _first_slot(owned.view.checkpoint, folds):
        for topic_id, places in groupby(sorted(folds), key=lambda place: place.topic_id):
            segments += owned.view.index.segments_with(
                topic_id, {place.partition: folds[place].end for place in places}
            )
    else:
        segments += [slot.index for slot in (await owned.history(unplanned=True)).segments]
    entries: dict[int, list[fmt.BatchEntry]] = {}
    for index in segments:
        entries.setdefault(index.slot, []).extend(entry for entry in index.batches if _is_needed(entry, folds))
    return [_Piece(slot, run) for slot in sorted(entries) for run in _runs(entries[slot])]


def _first_slot(checkpoint: fmt.Checkpoint, folds: Mapping[PartitionId, _Fold]) -> int:
    """Return the first slot that may hold records behind the snapshot. Many segments may have come since, and
    by the ends in the checkpoint none of them has such records.
    """
    ends = {PartitionId(each.topic_id, each.partition): each.end for each in checkpoint.state.ends}
    is_behind = any(fold.end < ends.get(place, 0) for place, fold in folds.items())
    return 1 + (checkpoint.planned_slot if is_behind else checkpoint.state.slot)


def _is_needed(entry: fmt.BatchEntry, folds: Mapping[PartitionId, _Fold]) -> bool:
    fold = folds.get(PartitionId(entry.topic_id, entry.partition))
    return fold is not None and entry.base_offset + entry.record_count > fold.end


def _runs(entries: Sequence[fmt.BatchEntry]) -> Iterator[list[fmt.BatchEntry]]:
    run: list[fmt.BatchEntry] = []
    for entry in sorted(entries, key=lambda entry: entry.position):
        if run and entry.position > run[-1].position + run[-1].length + GAP_BYTES_MAX:
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


async def _get(owned: OwnedLedger, piece: _Piece) -> memoryview:
    first, last = piece.entries[0], piece.entries[-1]
    async with owned.context.internal_reads:
        key = keys.segment(owned.bundle, piece.slot)
        return memoryview(
            await owned.context.store.get_range(key, first.position, last.position + last.length - first.position)
        )


async def _take_in(owned: OwnedLedger, piece: _Piece, data: memoryview, folds: Mapping[PartitionId, _Fold]) -> None:
    """Fold one piece in. Raises ObjectMissing if the slot holds another segment now."""
    begin, key = piece.entries[0].position, keys.segment(owned.bundle, piece.slot)
    for entry in piece.entries:
        fold, at = folds[PartitionId(entry.topic_id, entry.partition)], entry.position - begin
        before = fold.damage
        fold.add(entry, data[at : at + entry.length], key)
        if fold.damage is not None and before is None:
            found = await whose_damage(owned.context.store, owned.bundle, entry.position, entry.crc, fold.damage)
            if isinstance(found, ObjectMissing):
                raise found

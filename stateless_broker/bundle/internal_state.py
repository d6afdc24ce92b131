"""Read what an internal topic holds now, for the broker that takes over its bundle: the latest
record of each key, from snapshot and tail.

The live keys bound the cost. One GET reads the snapshot, which holds nothing else. One more GET
reads each later segment that holds records of the topic, for all its partitions together because
they are adjacent; several GETs run at a time. The owner makes a new snapshot before such segments
are many (`ledger.parquet.plan.is_internal_due`). Memory never holds more than the live keys and one
window of the tail. A damaged batch affects only its partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ledger import keys
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.keys import PartitionId
from ledger.log.internal_topic import decode_internal, read_snapshot
from ledger.log.segment import whose_damage
from ledger.log.snapshot import InternalRecord, records_of
from ledger.object_store.contract import ObjectMissing
from ledger.topics.catalog import Topic
from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.runtime.reread import Rereads
from stateless_broker.bundle.owned_ledger import OwnedLedger

ATTEMPTS_MAX = 5
WINDOW_SEGMENTS = 64


@dataclass(slots=True)
class LatestRecords:
    """Latest records of one partition: `records` ascending by offset, without tombstones, each with
    the key of the object that holds it.
    """

    records: list[tuple[InternalRecord, str]] = field(default_factory=list)
    damage: DataDamaged | FormatNotSupported | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """The batches of the topic in one segment: one run of bytes."""

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


async def read_internal_state(owned: OwnedLedger, topic: Topic, partitions: Sequence[int]) -> dict[int, LatestRecords]:
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
            found = await _read(owned, topic, partitions)
            if found is not None:
                return found
        except (
            ObjectMissing
        ) as missing:  # trimmed, or in a newer snapshot: start again from that, because a tombstone may have left both
            await owned.view.look_for(missing, known)
        except (DataDamaged, FormatNotSupported) as damage:
            return {partition: LatestRecords(damage=damage) for partition in partitions}


async def _read(owned: OwnedLedger, topic: Topic, partitions: Sequence[int]) -> dict[int, LatestRecords] | None:
    """Read once; return None if a newer checkpoint was made meanwhile."""
    store, checkpoint = owned.context.store, owned.view.checkpoint
    ends = {partition: owned.view.durable_end(PartitionId(topic.id, partition)) for partition in partitions}
    snapshot = await read_snapshot(store, checkpoint)
    snapshot_key = keys.snapshot(owned.bundle, checkpoint.snapshot_plan)
    folds = {partition: _Fold(*records_of(snapshot, topic.id, partition), snapshot_key) for partition in partitions}
    del snapshot
    tail = await _tail(owned, topic, folds)
    if owned.view.checkpoint.number != checkpoint.number:
        return None
    pieces = [piece for index in tail if (piece := _piece(index, topic.id, folds))]
    for first in range(0, len(pieces), WINDOW_SEGMENTS):
        window = pieces[first : first + WINDOW_SEGMENTS]
        found = await asyncio.gather(*(_get(owned, piece) for piece in window))
        for piece, data in zip(window, found, strict=True):
            await _take_in(owned, piece, data, folds)
            await asyncio.sleep(0)
    for partition, fold in folds.items():
        if fold.damage is None and fold.end < ends[partition]:
            fold.damage = DataDamaged(
                f"bundle {owned.bundle}: offset {fold.end} of {topic.name}/{partition} is in no segment"
            )
    return {partition: fold.result() for partition, fold in folds.items()}


async def _tail(owned: OwnedLedger, topic: Topic, folds: Mapping[int, _Fold]) -> list[fmt.SegmentIndex]:
    """Return the segments behind the snapshot that hold records of these partitions: from the
    owner's index, or else from the store.
    """
    if owned.view.index.covered_from <= owned.view.checkpoint.planned_slot + 1:
        return owned.view.index.segments_with(topic.id, {partition: fold.end for partition, fold in folds.items()})
    history = await owned.history(unplanned=True)
    return [slot.index for slot in history.segments]


def _piece(index: fmt.SegmentIndex, topic_id: int, folds: Mapping[int, _Fold]) -> _Piece | None:
    entries = [
        entry
        for entry in index.batches
        if entry.topic_id == topic_id
        and entry.partition in folds
        and entry.base_offset + entry.record_count > folds[entry.partition].end
    ]
    return _Piece(index.slot, entries) if entries else None


async def _get(owned: OwnedLedger, piece: _Piece) -> memoryview:
    first, last = piece.entries[0], piece.entries[-1]
    async with owned.context.internal_reads:
        key = keys.segment(owned.bundle, piece.slot)
        return memoryview(
            await owned.context.store.get_range(key, first.position, last.position + last.length - first.position)
        )


async def _take_in(owned: OwnedLedger, piece: _Piece, data: memoryview, folds: Mapping[int, _Fold]) -> None:
    """Fold one segment in. Raises ObjectMissing if the slot holds another segment now."""
    begin, key = piece.entries[0].position, keys.segment(owned.bundle, piece.slot)
    for entry in piece.entries:
        fold, at = folds[entry.partition], entry.position - begin
        before = fold.damage
        fold.add(entry, data[at : at + entry.length], key)
        if fold.damage is not None and before is None:
            found = await whose_damage(owned.context.store, owned.bundle, entry.position, entry.crc, fold.damage)
            if isinstance(found, ObjectMissing):
                raise found

"""Build the snapshot of a plan: the internal topics of a bundle, cleaned by key.

Every process that runs the plan builds the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from itertools import pairwise

from ledgermq.errors import DataDamaged, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.plans import refuse
from ledgermq_ledger.log.chains.snapshot import InternalRecord, clean, decode_snapshot, encode_snapshot, records_of
from ledgermq_ledger.log.internal_topic import decode_internal
from ledgermq_ledger.log.segments.indexes import SegmentIndexes
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.parquet.compacting.group_build import read_planned_index

PARALLEL_READS = 16


async def build_snapshot(store: ObjectStore, plan: fmt.CompactionPlan, known: SegmentIndexes) -> fmt.Snapshot:
    """Build a snapshot. `known`: indexes that are not read again.

    Raises PlanOvertaken, DataDamaged, the store's errors.
    """
    before = await _previous(store, plan)
    records: dict[PartitionId, list[InternalRecord]] = {}
    ends: dict[PartitionId, int] = {}
    for part in before.partitions:
        key = PartitionId(part.topic_id, part.partition)
        ends[key], records[key] = records_of(before, *key)
    wanted = {PartitionId(part.topic_id, part.partition): part for part in plan.internal}
    starts = {key: ends.get(key, 0) for key in wanted}
    needed = {slot for part in plan.internal for slot in part.slots}
    slots = [slot for slot in (*plan.lagging, *plan.slots) if slot.slot in needed]
    for i in range(0, len(slots), PARALLEL_READS):
        window = await asyncio.gather(
            *(_read_slot(store, plan, slot, wanted.keys(), known) for slot in slots[i : i + PARALLEL_READS])
        )
        for found in window:
            for partition, record in found:
                if record.offset >= starts[partition]:
                    records.setdefault(partition, []).append(record)
    ends |= {key: part.end for key, part in wanted.items()}
    return fmt.Snapshot(
        bundle=plan.bundle,
        plan=plan.number,
        put_id=plan.put_id,
        partitions=[_part(key, ends[key], records[key]) for key in sorted(records)],
    )


async def _previous(store: ObjectStore, plan: fmt.CompactionPlan) -> fmt.Snapshot:
    if not plan.previous_snapshot:
        return fmt.Snapshot(bundle=plan.bundle)
    key = keys.snapshot(plan.bundle, plan.previous_snapshot)
    try:
        return decode_snapshot(await store.get(key), key)
    except ObjectMissing as error:
        raise await refuse(store, plan, key, "it is missing") from error


async def _read_slot(
    store: ObjectStore,
    plan: fmt.CompactionPlan,
    slot: fmt.PlannedSlot,
    wanted: Collection[PartitionId],
    known: SegmentIndexes,
) -> list[tuple[PartitionId, InternalRecord]]:
    """Return a segment's records of these partitions. A cached index is trusted if all its checksums
    match; otherwise the slot is damaged, or holds another segment.
    """
    cached = known.find_put(plan.bundle, slot.slot, slot.put_id)
    try:
        if cached is not None:
            with suppress(DataDamaged):
                return await _read_records(store, plan.bundle, cached.index, wanted)
        return await _read_records(store, plan.bundle, await read_planned_index(store, plan, slot), wanted)
    except ObjectMissing as error:
        raise await refuse(store, plan, keys.segment(plan.bundle, slot.slot), "it is missing") from error


async def _read_records(
    store: ObjectStore, bundle: int, index: fmt.SegmentIndex, wanted: Collection[PartitionId]
) -> list[tuple[PartitionId, InternalRecord]]:
    """Read the batches of these partitions, which are side by side in a segment: one range read."""
    entries = [entry for entry in index.batches if PartitionId(entry.topic_id, entry.partition) in wanted]
    if not entries:
        return []
    key = keys.segment(bundle, index.slot)
    begin, end = entries[0].position, entries[-1].position + entries[-1].length
    data = memoryview(await store.get_range(key, begin, end - begin))
    found = []
    for entry in entries:
        batch = data[entry.position - begin :][: entry.length]
        found += [
            (PartitionId(entry.topic_id, entry.partition), record) for record in decode_internal(batch, entry, key)
        ]
    return found


def _part(key: PartitionId, end: int, records: list[InternalRecord]) -> fmt.SnapshotPartition:
    for before, after in pairwise(records):
        if after.offset <= before.offset:
            raise AssertionError(f"internal partition {key}: offset {after.offset} comes after {before.offset}")
    if records and records[-1].offset >= end:
        raise AssertionError(f"internal partition {key}: offset {records[-1].offset} is beyond the end {end}")
    kept = [
        fmt.SnapshotRecord(offset=r.offset, key=r.key, value=r.value, timestamp_us=r.timestamp_us)
        for r in clean(records)
    ]
    return fmt.SnapshotPartition(topic_id=key.topic_id, partition=key.partition, end=end, records=kept)


async def put_snapshot(store: ObjectStore, snapshot: fmt.Snapshot, sources: Sources) -> int:
    """Put a snapshot, and return its size in bytes.

    Raises DataDamaged if another snapshot has the name, Unavailable.
    """
    key = keys.snapshot(snapshot.bundle, snapshot.plan)
    data = encode_snapshot(snapshot)
    outcome = await settle_put(store, key, [data], sources=sources)
    if outcome is PutOutcome.LOST:
        raise DataDamaged(f"{key}: another snapshot has its name", object_key=key)
    if outcome is PutOutcome.UNKNOWN:
        raise Unavailable(f"{key}: outcome of the conditional put is unknown; retry later")
    return len(data)

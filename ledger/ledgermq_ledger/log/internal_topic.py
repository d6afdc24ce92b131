"""Read internal topics from the store, in any process: the snapshot in force, then the records
after it. Decide when a snapshot is due.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledgermq.errors import CorruptFrame, DataDamaged, MessageTooLarge
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import decode_batch
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.chains.snapshot import InternalRecord, decode_snapshot, records_of
from ledgermq_ledger.log.history import History
from ledgermq_ledger.log.segments.segment import SlotIndex, whose_damage
from ledgermq_ledger.object_store.contract import Buffer, ObjectMissing, ObjectStore

INTERNAL_TARGET_BYTES = 8 * 1024 * 1024
INTERNAL_SEGMENTS = 512
"""Segments that a takeover may have to read after the snapshot, one GET each: half a second to a
second on S3, sixteen at a time. docs/decisions/0019 has the cost of fewer.
"""
SNAPSHOT_BYTES_PER_SEGMENT = 128 * 1024
"""Bytes that stream in the time of such a GET. With a large snapshot the tail may take as long as
the snapshot itself, so a segment never causes more rewriting than this.
"""


def is_internal_due(segments: int, size_bytes: int, snapshot_bytes: int) -> bool:
    """Return True if a new snapshot is due, with so many segments and bytes after the one of
    `snapshot_bytes`. A takeover should read little more than the live records.
    """
    too_many = segments >= INTERNAL_SEGMENTS + snapshot_bytes // SNAPSHOT_BYTES_PER_SEGMENT
    return too_many or size_bytes >= max(INTERNAL_TARGET_BYTES, snapshot_bytes // 2)


async def read_snapshot(store: ObjectStore, checkpoint: fmt.Checkpoint) -> fmt.Snapshot:
    """Return the snapshot in force; an empty one if there is none yet.

    Raises ObjectMissing if a newer checkpoint has replaced it, DataDamaged if it is missing
    although none has.
    """
    if not checkpoint.snapshot_plan:
        return fmt.Snapshot(bundle=checkpoint.bundle)
    key = keys.snapshot(checkpoint.bundle, checkpoint.snapshot_plan)
    try:
        return decode_snapshot(await store.get(key), key)
    except ObjectMissing:
        if (await newest_checkpoint(store, checkpoint.bundle)).snapshot_plan == checkpoint.snapshot_plan:
            raise DataDamaged(
                f"{key}: it is missing, but the newest checkpoint says that it is in force", object_key=key
            ) from None
        raise


async def read_internal(store: ObjectStore, history: History, topic_id: int, partition: int) -> list[InternalRecord]:
    """Return all records that count, ascending by offset.

    Raises DataDamaged, ObjectMissing (read the history again).
    """
    end, records = records_of(await read_snapshot(store, history.checkpoint), topic_id, partition)
    return records + await read_batches(store, history.bundle, history.segments, topic_id, partition, end)


async def read_batches(
    store: ObjectStore, bundle: int, segments: Iterable[SlotIndex], topic_id: int, partition: int, from_offset: int
) -> list[InternalRecord]:
    """Return the records at or above `from_offset` in these valid segments.

    Raises DataDamaged, ObjectMissing (read the history again).
    """
    records: list[InternalRecord] = []
    for slot in segments:
        for entry in slot.index.batches:
            if (entry.topic_id, entry.partition) == (
                topic_id,
                partition,
            ) and entry.base_offset + entry.record_count > from_offset:
                key = keys.segment(bundle, slot.index.slot)
                data = await store.get_range(key, entry.position, entry.length)
                try:
                    found = decode_internal(data, entry, key)
                except DataDamaged as damage:
                    raise await whose_damage(store, bundle, entry.position, entry.crc, damage) from damage
                records += [r for r in found if r.offset >= from_offset]
    return records


def decode_internal(data: Buffer, entry: fmt.BatchEntry, key: str) -> list[InternalRecord]:
    """Decode the records of one batch. Raises DataDamaged, naming `key`."""
    try:
        check_crc(data, entry.crc)
        batch = decode_batch(data)
    except (CorruptFrame, MessageTooLarge) as error:
        raise DataDamaged(f"{key}: batch at byte {entry.position}: {error}", object_key=key) from error
    rows = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
    return [
        InternalRecord(entry.base_offset + i, k if k is not None else b"", v, entry.timestamp_max_us)
        for i, (k, v) in enumerate(rows)
    ]

"""Read internal topics from the store, in any process: the snapshot in force, then the records
after it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledgermq.errors import CorruptFrame, DataDamaged, MessageTooLarge
from ledgermq.protocol.batch_header import check_crc
from ledgermq.protocol.records import decode_batch
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.checkpoint import newest_checkpoint
from ledgermq_ledger.log.history import History
from ledgermq_ledger.log.segment import SlotIndex, whose_damage
from ledgermq_ledger.log.snapshot import InternalRecord, decode_snapshot, records_of
from ledgermq_ledger.object_store.contract import Buffer, ObjectMissing, ObjectStore


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

"""Check one segment by itself: index, layout, and every batch, without the ledger around it."""

from __future__ import annotations

from itertools import pairwise

from ledgermq.errors import CorruptFrame, MessageTooLarge
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import END_OF_STREAM, decode_batch, schema_prefix
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import SlotIndex, decode_tail, first_batch_position, read_index
from ledgermq_ledger.object_store.contract import ObjectStore


async def check_segment(
    store: ObjectStore, bundle: int, slot: int, problems: Problems, *, quick: bool
) -> SlotIndex | None:
    """Check a segment and return its index; None if that cannot be read.

    `quick`: do not read the batches. Raises ObjectMissing.
    """
    key = keys.segment(bundle, slot)
    with problems.collecting(key):
        if quick:
            found = await read_index(store, bundle, slot)
            check_layout(found.index, problems)
            return found
        data = await store.get(key)
        found = decode_tail(data, bundle, slot)
        check_layout(found.index, problems)
        check_batches(data, found, problems)
        return found
    return None


def check_layout(index: fmt.SegmentIndex, problems: Problems) -> None:
    """Check the index by itself."""
    key = keys.segment(index.bundle, index.slot)
    if len(index.put_id) != 16 or len(index.writer) != 16:
        problems.damage(key, "BAD_INDEX", "its put id or writer id is not 16 bytes long")
    if index.kind not in (fmt.DATA, fmt.CLAIM, fmt.RELEASE) or (index.batches and index.kind != fmt.DATA):
        problems.damage(key, "BAD_INDEX", f"a segment of kind {index.kind} cannot have {len(index.batches)} batches")
    position = first_batch_position()
    for number, entry in enumerate(index.batches):
        if entry.position != position:
            problems.damage(
                key,
                "BAD_INDEX",
                f"its index says that batch {number} begins at byte {entry.position}, but it begins at {position}",
            )
        position = entry.position + entry.length
        if entry.record_count == 0:
            problems.damage(key, "BAD_INDEX", f"batch {number} has no records")
    for before, after in pairwise(index.batches):
        if PartitionId(after.topic_id, after.partition) < PartitionId(before.topic_id, before.partition):
            problems.damage(key, "BAD_INDEX", "its batches are not sorted by topic id and partition")


def check_batches(data: bytes, slot: SlotIndex, problems: Problems) -> None:
    """Check the batches."""
    index = slot.index
    key = keys.segment(index.bundle, index.slot)
    end = index.batches[-1].position + index.batches[-1].length if index.batches else first_batch_position()
    if not data.startswith(schema_prefix()) or data[end : end + len(END_OF_STREAM)] != END_OF_STREAM:
        problems.damage(key, "DATA_DAMAGED", "it is not an Arrow stream of record schema 1")
    if end + len(END_OF_STREAM) + slot.tail_length != len(data):
        problems.damage(key, "DATA_DAMAGED", "it has bytes that belong neither to a batch nor to the index")
    for number, entry in enumerate(index.batches):
        where = f"batch {number} (topic id {entry.topic_id} partition {entry.partition} offset {entry.base_offset})"
        try:
            piece = memoryview(data)[entry.position : entry.position + entry.length]
            check_crc(piece, entry.crc)
            rows = decode_batch(piece).num_rows
        except (CorruptFrame, MessageTooLarge) as error:
            problems.damage(key, "DATA_DAMAGED", f"{where}: {error.message}")
            continue
        if rows != entry.record_count:
            problems.damage(key, "DATA_DAMAGED", f"{where} has {rows} records, but the index says {entry.record_count}")

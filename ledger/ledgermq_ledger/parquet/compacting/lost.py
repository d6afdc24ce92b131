"""Handle records whose batch cannot be read: how they are reported, and which rows replace them
once an operator accepts the loss.

Offsets are dense and each has one row in Parquet, lost or not. A lost row has a null key, value and
tag, the batch's earliest timestamp, and one header, LOST, whose value is the key of the damaged
object. The segment's index, which has a separate checksum, gives the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from ledgermq.buffers import Buffer
from ledgermq.errors import CorruptFrame
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import SCHEMA, decode_batch
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt

LOST = "ledgermq.lost"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def decode_stored(data: Buffer, entry: fmt.BatchEntry, *, crc_fits: bool = False) -> pa.RecordBatch:
    """Decode a batch of a segment; `crc_fits`: its checksum was verified. Raises CorruptFrame,
    MessageTooLarge.
    """
    if not crc_fits:
        check_crc(data, entry.crc)
    batch = decode_batch(data)
    if batch.num_rows != entry.record_count:
        raise CorruptFrame(f"it has {batch.num_rows} rows, but the index says {entry.record_count}")
    return batch


def is_lost(entry: fmt.BatchEntry, lost: Iterable[fmt.LostRecords]) -> bool:
    """Return True if an operator accepted the loss of the whole batch."""
    last = entry.base_offset + entry.record_count - 1
    return any(each.first_offset <= entry.base_offset and last <= each.last_offset for each in lost)


def rows_in_place(entry: fmt.BatchEntry, object_key: str) -> pa.RecordBatch:
    row = {"headers": [{"key": LOST, "value": object_key.encode()}], "timestampType": 0}
    if entry.timestamp_min_us:
        row["timestamp"] = _EPOCH + timedelta(microseconds=entry.timestamp_min_us)
    return pa.RecordBatch.from_pylist([row] * entry.record_count, schema=SCHEMA)

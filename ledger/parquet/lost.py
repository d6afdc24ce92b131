"""Records whose batch cannot be read: how that is told, and what stands in their place once
somebody has given them up.

Offsets are dense and each has one row in Parquet, lost or not: key, value and tag null, the batch's
earliest timestamp, and one header, LOST, whose value is the key of the damaged object. How many
rows a batch had is known from the segment's index, which has a checksum of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from ledger.format import ledgermq_format_pb2 as fmt
from ledgermq.buffers import Buffer
from ledgermq.errors import CorruptFrame
from ledgermq.protocol.batch_header import check_crc
from ledgermq.protocol.records import SCHEMA, decode_batch

LOST = "ledgermq.lost"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def decode_stored(data: Buffer, entry: fmt.BatchEntry, *, crc_fits: bool = False) -> pa.RecordBatch:
    """A batch as a segment holds it; `crc_fits`: that was looked at. Raises CorruptFrame,
    MessageTooLarge.
    """
    if not crc_fits:
        check_crc(data, entry.crc)
    batch = decode_batch(data)
    if batch.num_rows != entry.record_count:
        raise CorruptFrame(f"it has {batch.num_rows} rows, but the index says {entry.record_count}")
    return batch


def is_lost(entry: fmt.BatchEntry, lost: Iterable[fmt.LostRecords]) -> bool:
    """Has the whole batch been given up?"""
    last = entry.base_offset + entry.record_count - 1
    return any(each.first_offset <= entry.base_offset and last <= each.last_offset for each in lost)


def rows_in_place(entry: fmt.BatchEntry, object_key: str) -> pa.RecordBatch:
    row = {"headers": [{"key": LOST, "value": object_key.encode()}], "timestampType": 0}
    if entry.timestamp_min_us:
        row["timestamp"] = _EPOCH + timedelta(microseconds=entry.timestamp_min_us)
    return pa.RecordBatch.from_pylist([row] * entry.record_count, schema=SCHEMA)

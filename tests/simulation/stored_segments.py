"""Segments as they were first created in their slots, decoded once for all judges, and which of them are valid."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from ledgermq.protocol.batches.batch_header import walk_batch
from ledgermq.protocol.batches.records import DECODED_BYTES_MAX, SCHEMA, decode_batch, schema_prefix
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt


class StoredBatch:
    """A batch of a segment. It is decoded once, however often it is judged."""

    def __init__(self, entry: fmt.BatchEntry, segment: bytes) -> None:
        self.entry = entry
        self.topic_id, self.partition, self.base_offset = entry.topic_id, entry.partition, entry.base_offset
        self.data = segment[entry.position : entry.position + entry.length]

    @cached_property
    def decoded(self) -> pa.RecordBatch:
        return decode_batch(self.data)

    @cached_property
    def rows(self) -> list[tuple[bytes | None, bytes | None]]:
        """(key, value) of each record."""
        batch = self.decoded
        return list(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))

    @cached_property
    def values(self) -> list[bytes | None]:
        return values_of(self.data)


@dataclass(frozen=True)
class StoredSegment:
    """`moment`: the place of its object among all that were ever stored."""

    slot: int
    index: fmt.SegmentIndex
    data: bytes
    valid: bool
    moment: int = 0

    @cached_property
    def batches(self) -> list[StoredBatch]:
        return [StoredBatch(entry, self.data) for entry in self.index.batches]

    def records(self) -> list[tuple[int, bytes, bytes | None]]:
        """(offset, key, value) of every record; the key is empty if there is none."""
        return self._records

    @cached_property
    def _records(self) -> list[tuple[int, bytes, bytes | None]]:
        found = []
        for each in self.batches:
            batch = _batch_of(each.data)
            rows = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
            found += [(each.base_offset + i, key or b"", value) for i, (key, value) in enumerate(rows)]
        return found


def values_of(data: bytes) -> list[bytes | None]:
    """The values of one batch, which the product has validated before it was stored."""
    values: list[bytes | None] = _batch_of(data).column("value").to_pylist()
    return values


def times_of(data: bytes) -> list[int]:
    """The timestamps of one batch, in microseconds."""
    times: list[int] = _batch_of(data).column("timestamp").cast("int64").to_pylist()
    return times


def _batch_of(data: bytes) -> pa.RecordBatch:
    if walk_batch(data, decoded_bytes_max=DECODED_BYTES_MAX).codec == "none":
        return pa.ipc.read_record_batch(pa.py_buffer(data), SCHEMA)
    stream = pa.py_buffer(schema_prefix() + data)
    return pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(use_threads=False)).read_next_batch()


class Fold:
    """Validity, told a second time and independently of ledger/ledgermq_ledger/log/fold.py."""

    def __init__(self) -> None:
        self.slot = 0
        self.valid: set[int] = set()
        self._term = (0, b"")
        self._last = b""

    def take(self, index: fmt.SegmentIndex) -> bool:
        self.slot += 1
        opens = index.kind == fmt.CLAIM and index.epoch > self._term[0]
        continues = index.kind in (fmt.DATA, fmt.RELEASE) and (index.epoch, index.writer) == self._term
        if index.previous != self._last or not (opens or continues):
            return False
        self._term = (index.epoch, index.writer)
        self._last = index.put_id
        self.valid.add(self.slot)
        return True

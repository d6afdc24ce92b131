"""Records on the wire and in segments: the Arrow schema, and one batch as one Arrow IPC message.

    schema version 1: key binary, value binary (null = tombstone), headers list<struct<key string, value binary>>,
    timestamp timestamp[us, UTC], timestampType int32 (0 = the producer's, 1 = the broker's), tag string; all nullable

Invariant: `decode_batch` validates fully before any value is read. On hostile bytes that is the
difference between an error and a crash of the process. Arrow itself compresses buffers, in the
process that encodes the batch.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.buffers import Buffer
from ledgermq.errors import CorruptFrame, InvalidRecord
from ledgermq.protocol.batches.batch_header import BatchInfo, walk_batch

Compression = Literal["none", "lz4", "zstd"]

SCHEMA_VERSION = 1
CONDITIONAL_SCHEMA_VERSION = 2
"""In the header of a batch with a condition, whose records are those of version 1: a broker that would pass over the
condition refuses it.
"""
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("tag", pa.string()),
    ]
)
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
DECODED_BYTES_MAX = 256 * 1024 * 1024
"""Largest batch that is ever decoded: a limit on the decoded size that compressed buffers claim."""

THREADS_BYTES_MIN = 1024 * 1024
"""Below this size a batch is (de)compressed by the calling thread: passing a small one to Arrow's
pool costs ten times as much as the work.
"""

FEW_ROWS_MAX = 16
"""Up to this number of rows, Python reads values directly: a call of Arrow's compute functions
takes a fifth of a millisecond when the last one was long ago, which is the case for every record at
a low rate.
"""

_OFFSET_BYTES = 4

TIMESTAMP_MIN_US = -62_135_596_800_000_000
TIMESTAMP_MAX_US = 253_402_300_799_999_999
"""The years 1 to 9999, which is the range of Python's datetime."""


@cache
def schema_prefix() -> bytes:
    """The message with which every Arrow stream of `SCHEMA` begins."""
    return bytes(SCHEMA.serialize())


def encode_batch(batch: pa.RecordBatch, compression: Compression = "none") -> bytes:
    """Encode rows as one IPC record batch message, without schema and end of stream.

    Raises InvalidRecord: no row, or not `SCHEMA`.
    """
    if compression == "none":
        return bytes(serialized_batch(batch))  # the same bytes as below, but eight times as fast for a small batch
    _check_encodable(batch)
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=batch.nbytes > THREADS_BYTES_MIN)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    return bytes(stream[len(schema_prefix()) : stream.size - len(END_OF_STREAM)])


def serialized_batch(batch: pa.RecordBatch) -> memoryview:
    """Return what `encode_batch` does without compression, in Arrow's memory: this saves a copy."""
    _check_encodable(batch)
    return memoryview(batch.serialize())


def _check_encodable(batch: pa.RecordBatch) -> None:
    if not batch.schema.equals(SCHEMA):
        raise InvalidRecord(f"a record batch must have the columns {', '.join(f'{f.name}: {f.type}' for f in SCHEMA)}")
    if batch.num_rows == 0:
        raise InvalidRecord("a record batch must have at least one row")


def decode_batch(
    data: Buffer, decoded_bytes_max: int = DECODED_BYTES_MAX, walked: BatchInfo | None = None
) -> pa.RecordBatch:
    """Return the batch, fully validated; its buffers may be views of `data`. Raises CorruptFrame,
    MessageTooLarge.

    `walked`: the result of `walk_batch` for the same bytes, which saves walking them again.
    """
    info = walked or walk_batch(data, decoded_bytes_max=decoded_bytes_max)
    try:
        batch = _read(data, info)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, EOFError, StopIteration) as error:
        raise CorruptFrame(f"not a valid Arrow record batch: {error}") from error
    return batch


def check_decoded(batch: pa.RecordBatch, decoded_bytes_max: int = DECODED_BYTES_MAX) -> pa.RecordBatch:
    """Return a batch that came without its bytes, as fully validated as `decode_batch` does. Raises CorruptFrame."""
    if not batch.schema.equals(SCHEMA) or not batch.num_rows > 0 or batch.nbytes > decoded_bytes_max:
        raise CorruptFrame(
            f"a batch has 1 record or more of the record schema and {decoded_bytes_max} bytes at most, not"
            f" {batch.num_rows} records of {batch.nbytes} bytes with the columns {', '.join(batch.schema.names)[:200]}"
        )
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise CorruptFrame(f"not a valid Arrow record batch: {error}") from error
    return batch


def _read(data: Buffer, info: BatchInfo) -> pa.RecordBatch:
    """Read the batch through a stream reader: only its options keep Arrow from passing each small
    buffer to its pool. It costs a copy of the compressed bytes.
    """
    if info.codec == "none" or info.decoded_bytes > THREADS_BYTES_MIN:
        return pa.ipc.read_record_batch(pa.py_buffer(data), SCHEMA)
    stream = pa.py_buffer(b"".join((schema_prefix(), data)))
    return pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(use_threads=False)).read_next_batch()


def timestamps_of(batch: pa.RecordBatch) -> tuple[int, int] | None:
    """Return the smallest and largest timestamp in microseconds; None if no record has one. Raises
    InvalidRecord outside of the years 1 to 9999.
    """
    timestamps = batch.column("timestamp")
    if len(timestamps) <= FEW_ROWS_MAX:
        known = _few_numbers(timestamps)
        low, high = (min(known), max(known)) if known else (None, None)
    else:
        low_high = pc.min_max(timestamps.view(pa.int64())).as_py()
        low, high = low_high["min"], low_high["max"]
    if low is None or high is None:
        return None
    if low < TIMESTAMP_MIN_US or high > TIMESTAMP_MAX_US:
        raise InvalidRecord(f"timestamps from {low} to {high} µs: outside of the years 1 to 9999")
    return low, high


def _few_numbers(timestamps: pa.Array) -> list[int]:
    """Return the timestamps that are not null, read from memory where that saves a view."""
    if timestamps.null_count:
        return [timestamp.value for timestamp in timestamps if timestamp.is_valid]
    first, count = timestamps.offset, len(timestamps)
    return memoryview(timestamps.buffers()[1])[8 * first : 8 * (first + count)].cast("q").tolist()


def record_bytes(batch: pa.RecordBatch) -> pa.Array:
    """Return the size of each record: key, value and headers, in bytes (int64)."""
    keys, values = batch.column("key"), batch.column("value")
    sizes = _length(values) if keys.null_count == len(keys) else pc.add(_length(keys), _length(values))
    headers = batch.column("headers")
    if headers.null_count == len(headers):
        return sizes
    pair_keys, pair_values = headers.values.flatten()
    up_to = pa.concat_arrays(
        [pa.array([0], pa.int64()), pc.cumulative_sum(pc.add(_length(pair_keys), _length(pair_values)))]
    )
    extra = pc.subtract(up_to.take(headers.offsets[1:]), up_to.take(headers.offsets[:-1]))
    return pc.add(sizes, pc.if_else(headers.is_valid(), extra, 0))  # a null list may contain pairs nevertheless


def data_bytes_at_most(batch: pa.RecordBatch) -> int:
    """Return whether all keys, values and headers of a validated batch together are within the
    limit. If so, each record is, and no record needs a check.
    """
    offsets_bytes = _OFFSET_BYTES * batch.num_rows  # Arrow counts an offset for each value, not the last one
    columns = [column for column in map(batch.column, ("key", "value")) if column.null_count < len(column)]
    headers = batch.column("headers")
    # Not `nbytes` of headers: it reads offsets that arrays without elements need not have.
    headers_bytes = headers.get_total_buffer_size() if headers.null_count < len(headers) else 0
    return int(headers_bytes + sum(column.nbytes - offsets_bytes for column in columns))


def largest_record_bytes(batch: pa.RecordBatch) -> int:
    return int(pc.max(record_bytes(batch)).as_py())


def _length(column: pa.Array) -> pa.Array:
    lengths = pc.binary_length(column)
    return (pc.fill_null(lengths, 0) if column.null_count else lengths).cast(pa.int64())

"""Turn a record batch of a Kafka producer into Arrow, and check every rule of the format.

    Kafka                              here
    timestamp in ms, -1                timestamp in µs, null
    a record's headers, none           list of pairs, null
    header `ledgermq.tag`              tag, if the header's value is not null; only the first such header is taken

What `compiled` reads counts only if encoding it again gives the same bytes. If not, `strict` decides.

Must not know: topics, partitions and what a broker does with the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.buffers import Buffer
from ledgermq.errors import InvalidRecord
from ledgermq.protocol.batches.record_rules import PRODUCERS_TYPE
from ledgermq.protocol.batches.records import HEADERS, SCHEMA, TIMESTAMP_MAX_US, TIMESTAMP_MIN_US, Compression
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from ledgermq_broker.kafka.wire.batches.columns import encode_columns
from ledgermq_broker.kafka.wire.batches.compiled import encode_rows, unchecked_records
from ledgermq_broker.kafka.wire.batches.compression import decompress
from ledgermq_broker.kafka.wire.batches.head import HEAD, NONE, BatchHead, check_crc, read_head
from ledgermq_broker.kafka.wire.batches.refusals import BatchTooLarge, InvalidTimestamp, RecordsRefused
from ledgermq_broker.kafka.wire.batches.strict import RECORD_BYTES_MIN, Pairs, ReadRecord, read_records

TAG_HEADER = "ledgermq.tag"
DECODED_BYTES_MAX = 2 * FRAME_PAYLOAD_BYTES_MAX
"""Largest decompressed batch, as for batches of our own client."""

_FEW_RECORDS = 4
"""Up to this number the strict reader costs less than the quick one."""
COLUMNS_FROM = 300
"""From this number of records on, numpy encodes a batch in less time than aiokafka does."""
_ODD_RECORDS_MAX = 65_536
"""Largest batch for which the strict reader takes its time. No known client writes numbers longer than they need be."""
_AT_ONCE = 65_536
"""Records that exist as Python objects at one time."""
_ROW_BYTES = 28
"""Arrow's offsets, timestamp and its type of one record."""
_STORED_AS: dict[str, Compression] = {"none": "none", "gzip": "lz4", "snappy": "lz4", "lz4": "lz4", "zstd": "zstd"}


@dataclass(frozen=True, slots=True)
class ProducedBatch:
    """A checked batch of a producer. `records`: of the record schema. `compression`: as they are to be stored."""

    head: BatchHead
    records: pa.RecordBatch
    compression: Compression


def decode_records(data: Buffer, *, decoded_bytes_max: int = DECODED_BYTES_MAX) -> ProducedBatch:
    """Return a producer's batch, fully checked. The same bytes always give the same records.

    Raises WrongCrc, MagicNotSupported, CodecNotSupported, BatchTooLarge, InvalidTimestamp, RecordsRefused.
    """
    head = read_head(data)
    check_crc(data, head)
    if head.control:
        raise RecordsRefused("only brokers write control batches")
    if head.append_time:
        raise InvalidTimestamp("a producer must not claim that its timestamps are the broker's (LogAppendTime)")
    body = decompress(memoryview(data)[HEAD.size :], head.codec_number, decoded_bytes_max)
    if RECORD_BYTES_MIN * head.record_count > len(body):
        raise RecordsRefused(f"the batch claims {head.record_count} records, its {len(body)} bytes cannot hold them")
    if _ROW_BYTES * head.record_count + len(body) > decoded_bytes_max:
        raise BatchTooLarge(f"{head.record_count} records of {len(body)} bytes are too many for one batch; send less")
    return ProducedBatch(head, _decode(head, body), _STORED_AS[head.codec])


def _decode(head: BatchHead, body: Buffer) -> pa.RecordBatch:
    found = None
    if head.record_count > _FEW_RECORDS:
        try:
            found = _decode_quickly(head, body)
        except InvalidRecord:
            if head.record_count > _ODD_RECORDS_MAX:
                raise
    if found is not None:
        return found
    if head.record_count > _ODD_RECORDS_MAX:
        raise RecordsRefused("the records of the batch are damaged, or their numbers are longer than they need be")
    read = read_records(body, head.record_count, head.base_timestamp_ms)
    return _arrow([r.key for r in read], [r.value for r in read], [r.headers for r in read], _times(read), 0)


def _times(read: Sequence[ReadRecord]) -> list[int | None]:
    return [None if record.timestamp_ms == NONE else record.timestamp_ms for record in read]


def _decode_quickly(head: BatchHead, body: Buffer) -> pa.RecordBatch | None:
    """Return what aiokafka reads; None: it is not certain that this is what the bytes say."""
    source = unchecked_records(body, head.record_count, head.base_timestamp_ms)
    parts: list[pa.RecordBatch] = []
    at = 0
    for first in range(0, head.record_count, _AT_ONCE):
        count = min(_AT_ONCE, head.record_count - first)
        try:
            read = list(islice(source, count))
        except Exception:  # of eight kinds, and with no place; the strict reader says what is wrong
            return None
        if [record.offset for record in read] != list(range(first, first + count)):
            return None
        keys, values = [record.key for record in read], [record.value for record in read]
        headers = [record.headers for record in read]
        times = [None if (ms := record.timestamp) == NONE else ms for record in read]
        deltas = [(NONE if ms is None else ms) - head.base_timestamp_ms for ms in times]
        part = _arrow(keys, values, headers, times, first)
        try:
            if head.record_count < COLUMNS_FROM:
                again: Buffer = encode_rows(range(count), deltas, keys, values, headers)
            else:
                offsets = np.arange(first, first + count)
                again = encode_columns(_with_headers(part, headers), offsets, np.array(deltas, np.int64))
        except OverflowError:  # a timestamp that has wrapped
            return None
        if memoryview(body)[at : at + len(again)] != again:
            return None
        at += len(again)
        parts.append(part)
    if at != len(body):
        return None
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _with_headers(part: pa.RecordBatch, headers: Sequence[Pairs]) -> pa.RecordBatch:
    """Return the rows with their headers as the client sent them, that of the tag among them."""
    if part.column("tag").null_count == len(part):
        return part
    return part.set_column(SCHEMA.get_field_index("headers"), "headers", pairs_column(headers))


def _arrow(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Pairs],
    times_ms: Sequence[int | None],
    first: int,
) -> pa.RecordBatch:
    """`first`: the number of the first row in the batch."""
    count = len(keys)
    pairs, tags = pa.nulls(count, HEADERS), pa.nulls(count, pa.string())
    if any(headers):
        plain, found = zip(*(_without_tag(row, first + number) for number, row in enumerate(headers)), strict=True)
        pairs, tags = pairs_column(plain), pa.array(found, pa.string())
    columns = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pairs,
        _microseconds(times_ms, first),
        pa.repeat(pa.scalar(PRODUCERS_TYPE, pa.int32()), count),
        tags,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def pairs_column(headers: Sequence[Pairs]) -> pa.Array:
    return pa.array([row or None for row in headers], HEADERS)


def _without_tag(headers: Pairs, row: int) -> tuple[Pairs, str | None]:
    for place, (name, value) in enumerate(headers):
        if name == TAG_HEADER and value is not None:
            try:
                return headers[:place] + headers[place + 1 :], value.decode()
            except UnicodeDecodeError as error:
                raise RecordsRefused(f"header {TAG_HEADER} of record {row} is not UTF-8: {error}", (row,)) from error
    return headers, None


def _microseconds(times_ms: Sequence[int | None], first: int) -> pa.Array:
    ms = pa.array(times_ms, pa.int64())
    least = _out_of_range(times_ms)
    if least is not None:
        raise InvalidTimestamp(
            f"the timestamp of record {first + least} is {times_ms[least]} ms, which is outside of the years 1 to 9999"
        )
    return pc.multiply(ms, 1000).view(SCHEMA.field("timestamp").type)


def _out_of_range(times_ms: Sequence[int | None]) -> int | None:
    """Return the number of a row whose timestamp cannot be stored."""
    low, high = TIMESTAMP_MIN_US // 1000, TIMESTAMP_MAX_US // 1000
    known = [ms for ms in times_ms if ms is not None]
    if not known or (min(known) >= low and max(known) <= high):
        return None
    return next(row for row, ms in enumerate(times_ms) if ms is not None and not low <= ms <= high)

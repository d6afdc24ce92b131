"""Turn a record batch of a Kafka producer into Arrow, and check every rule of the format.

    Kafka                              here
    timestamp in ms, -1                timestamp in µs, null
    a record's headers, none           list of pairs, null
    header `ledgermq.tag`              tag, if the header's value is not null; only the first such header is taken

`columns` reads large batches, and all that is valid. What `compiled` reads of smaller ones counts only if encoding it
again gives the same bytes. What these two refuse `strict` reads again, to say which record is wrong, and why.

Must not know: topics, partitions and what a broker does with the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa

from ledgermq.buffers import Buffer
from ledgermq.protocol.batches.record_rules import PRODUCERS_TYPE
from ledgermq.protocol.batches.records import HEADERS, SCHEMA, TIMESTAMP_MAX_US, TIMESTAMP_MIN_US, Compression
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from ledgermq_broker.kafka.wire.batches.columns import Numbers, decode_columns
from ledgermq_broker.kafka.wire.batches.compiled import encode_rows, unchecked_records
from ledgermq_broker.kafka.wire.batches.compression import decompress
from ledgermq_broker.kafka.wire.batches.head import HEAD, NONE, BatchHead, check_crc, read_head
from ledgermq_broker.kafka.wire.batches.refusals import BatchTooLarge, InvalidTimestamp, RecordsRefused
from ledgermq_broker.kafka.wire.batches.strict import RECORD_BYTES_MIN, NotARecord, Pairs, read_records

TAG_HEADER = "ledgermq.tag"
DECODED_BYTES_MAX = 2 * FRAME_PAYLOAD_BYTES_MAX
"""Largest decompressed batch, as for batches of our own client."""

_FEW_RECORDS = 4
"""Up to this number the strict reader costs less than the compiled one."""
_MANY_RECORDS = 200
"""From this number on the reader by columns costs less than the compiled one."""
COLUMNS_FROM = 300
"""From this number of records on, numpy encodes a batch in less time than aiokafka does."""
_NAMED_RECORDS_MAX = 65_536
"""Largest batch for which the strict reader takes its time to name the wrong record."""
_AT_ONCE = 65_536
"""Records that are read at one time."""
_ROW_BYTES = 28
"""Arrow's offsets, timestamp and its type of one record."""
_TIME_MIN_MS, _TIME_MAX_MS = TIMESTAMP_MIN_US // 1000, TIMESTAMP_MAX_US // 1000
_TIMESTAMPS = SCHEMA.field("timestamp").type
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
    if head.record_count > _FEW_RECORDS:
        try:
            return _decode_by_columns(head, body) if head.record_count >= _MANY_RECORDS else _decode_rows(head, body)
        except (NotARecord, IndexError) as error:
            if head.record_count > _NAMED_RECORDS_MAX:
                raise RecordsRefused("the records of the batch are damaged") from error
    read = read_records(body, head.record_count, head.base_timestamp_ms)
    keys, values = pa.array([r.key for r in read], pa.binary()), pa.array([r.value for r in read], pa.binary())
    headers, times_ms = [r.headers for r in read], [r.timestamp_ms for r in read]
    return _arrow(keys, values, headers if any(headers) else None, np.array(times_ms, np.int64), 0)


def _decode_rows(head: BatchHead, body: Buffer) -> pa.RecordBatch:
    """Return the records as the compiled codec reads them.

    Raises NotARecord (it is not certain that this is what the bytes say), InvalidTimestamp, RecordsRefused.
    """
    count = head.record_count
    try:
        read = list(islice(unchecked_records(body, count, head.base_timestamp_ms), count))
    except Exception as error:  # of eight kinds, and with no place; the strict reader says what is wrong
        raise NotARecord from error
    keys, values = [record.key for record in read], [record.value for record in read]
    headers = [record.headers for record in read]
    times_ms = [record.timestamp for record in read]
    try:
        deltas_ms = [ms - head.base_timestamp_ms for ms in times_ms]
        again = encode_rows(range(count), deltas_ms, keys, values, headers)
    except OverflowError as error:  # a timestamp that has wrapped
        raise NotARecord from error
    if [record.offset for record in read] != list(range(count)) or body != again:
        raise NotARecord
    known = headers if any(headers) else None
    return _arrow(pa.array(keys, pa.binary()), pa.array(values, pa.binary()), known, np.array(times_ms, np.int64), 0)


def _decode_by_columns(head: BatchHead, body: Buffer) -> pa.RecordBatch:
    """Raises NotARecord, IndexError, InvalidTimestamp, RecordsRefused."""
    data, at = bytes(body), 0
    parts: list[pa.RecordBatch] = []
    for first in range(0, head.record_count, _AT_ONCE):
        found = decode_columns(data, at, first, min(_AT_ONCE, head.record_count - first))
        times_ms = found.timestamp_deltas_ms + np.int64(head.base_timestamp_ms)  # wrapped to 64 bits as in Java
        parts.append(_arrow(found.keys, found.values, found.headers, times_ms, first))
        at = found.end
    if at != len(data):
        raise NotARecord
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _arrow(
    keys: pa.Array, values: pa.Array, headers: Sequence[Pairs] | None, times_ms: Numbers, first: int
) -> pa.RecordBatch:
    """`headers`: None if no record has any. `first`: the number of the first row in the batch."""
    count = len(keys)
    pairs, tags = pa.nulls(count, HEADERS), pa.nulls(count, pa.string())
    if headers is not None:
        plain, found = zip(*(_without_tag(row, first + number) for number, row in enumerate(headers)), strict=True)
        pairs, tags = pairs_column(plain), pa.array(found, pa.string())
    types = pa.repeat(pa.scalar(PRODUCERS_TYPE, pa.int32()), count)
    return pa.RecordBatch.from_arrays([keys, values, pairs, _microseconds(times_ms, first), types, tags], schema=SCHEMA)


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


def _microseconds(times_ms: Numbers, first: int) -> pa.Array:
    """`times_ms`: -1 for none."""
    least, most = int(times_ms.min()), int(times_ms.max())
    nulls = times_ms == NONE if least <= NONE <= most else None
    if least < _TIME_MIN_MS or most > _TIME_MAX_MS:
        row = int(np.flatnonzero((times_ms < _TIME_MIN_MS) | (times_ms > _TIME_MAX_MS))[0])
        raise InvalidTimestamp(
            f"the timestamp of record {first + row} is {times_ms[row]} ms, which is outside of the years 1 to 9999"
        )
    known_ms = times_ms if nulls is None else np.where(nulls, 0, times_ms)
    return pa.array(1000 * known_ms, mask=nulls).view(_TIMESTAMPS)

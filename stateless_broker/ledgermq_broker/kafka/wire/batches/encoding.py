"""Turn stored records into record batches for Kafka clients: uncompressed, joined with gaps, cut by size.

Must not know: topics, partitions and what a client has asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.buffers import MIB, Buffer
from ledgermq.protocol.batches.record_rules import PRODUCERS_TYPE
from ledgermq.protocol.batches.records import SCHEMA, record_bytes
from ledgermq_broker.kafka.wire.batches.columns import Numbers, encode_columns
from ledgermq_broker.kafka.wire.batches.compiled import encode_rows
from ledgermq_broker.kafka.wire.batches.decoding import COLUMNS_FROM, TAG_HEADER, pairs_column
from ledgermq_broker.kafka.wire.batches.head import APPEND_TIME, HEAD, INT32_MAX, NONE, write_batch
from ledgermq_broker.kafka.wire.batches.strict import Pairs

BATCH_BYTES_MAX = MIB
"""Size at which batches for Kafka clients are cut. Only a batch of one record may be larger."""
_RECORD_OVERHEAD = 36
_HEADER_OVERHEAD = 10
"""Bounds of what a record and a header take besides their content."""


def encode_records(
    runs: Iterable[tuple[int, pa.RecordBatch]], *, batch_bytes_max: int = BATCH_BYTES_MAX, covered_to: int = 0
) -> Iterator[bytes]:
    """Yield batches for a Kafka client: uncompressed, and of at most `batch_bytes_max` bytes unless one record is
    larger. Small runs are joined, with gaps between their offsets.

    `runs`: ascending base offsets, each with records of the record schema, one offset after the other.
    `covered_to`: no record exists between the runs' end and this offset, so readers may go on there; 0: not known.
    """
    group: list[_Piece] = []
    size = 0
    for base, records in runs:
        for piece in _pieces(base, records, batch_bytes_max):
            if group and not (
                piece.clock == group[0].clock
                and size + piece.bytes <= batch_bytes_max
                and piece.end - group[0].base <= INT32_MAX
            ):
                yield _encode(group, piece.base)
                group, size = [], 0
            group.append(piece)
            size += piece.bytes
    if group:
        yield _encode(group, covered_to)


def empty_batch(base_offset: int, end: int) -> bytes:
    """Return a batch without records, which tells a Kafka client that no record exists from `base_offset` up to `end`,
    and that it may go on there.
    """
    return write_batch(b"", base_offset, min(end - 1 - base_offset, INT32_MAX), 0, NONE, NONE, 0)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows with one kind of timestamp. `clock`: the broker's time of all rows in ms; None: the producers' times.
    `bytes`: at most what it takes, encoded.
    """

    base: int
    records: pa.RecordBatch
    clock: int | None
    bytes: int

    @property
    def end(self) -> int:
        return self.base + len(self.records)


def _pieces(base: int, records: pa.RecordBatch, bytes_max: int) -> Iterator[_Piece]:
    types = _numbers(records.column("timestampType"), PRODUCERS_TYPE)
    cuts, clocks = [0, len(records)], None
    if (types != PRODUCERS_TYPE).any():
        clocks = np.where(types == PRODUCERS_TYPE, np.iinfo(np.int64).min, _milliseconds(records))
        cuts[1:1] = (np.flatnonzero(clocks[1:] != clocks[:-1]) + 1).tolist()
    sizes = _bounds(records, bytes_max)
    for first, last in pairwise(cuts):
        clock = None if clocks is None or types[first] == PRODUCERS_TYPE else int(clocks[first])
        for start, stop, size in _cut(sizes, first, last, bytes_max):
            yield _Piece(base + start, records.slice(start, stop - start), clock, size)


def _bounds(records: pa.RecordBatch, bytes_max: int) -> Numbers:
    """Return a bound of the size of each record. They need not be exact in a batch that is small as a whole."""
    count = len(records)
    roughly = HEAD.size + _RECORD_OVERHEAD * count + 2 * records.get_total_buffer_size()
    if roughly <= bytes_max:
        return np.full(count, roughly // count + 1, np.int64)
    sizes = record_bytes(records).to_numpy(zero_copy_only=False) + _RECORD_OVERHEAD
    headers, tags = records.column("headers"), records.column("tag")
    if headers.null_count < count:
        sizes = sizes + _HEADER_OVERHEAD * pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    if tags.null_count < count:
        lengths = pc.fill_null(pc.binary_length(tags), 0).to_numpy(zero_copy_only=False)
        sizes = sizes + lengths + len(TAG_HEADER) + _HEADER_OVERHEAD
    return np.asarray(sizes, np.int64)


def _cut(sizes: Numbers, first: int, last: int, bytes_max: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, bytes) of parts that are no larger than allowed, or one record."""
    up_to = np.concatenate(([0], np.cumsum(sizes[first:last])))
    start = 0
    while start < last - first:
        limit = int(up_to[start]) + bytes_max - HEAD.size
        stop = max(start + 1, int(np.searchsorted(up_to, limit, side="right")) - 1)
        yield first + start, first + stop, int(up_to[stop] - up_to[start])
        start = stop


def _milliseconds(records: pa.RecordBatch) -> Numbers:
    return np.asarray(_numbers(records.column("timestamp").view(pa.int64()), 1000 * NONE) // 1000, np.int64)


def _numbers(column: pa.Array, of_null: int) -> npt.NDArray[np.int64] | npt.NDArray[np.int32]:
    """Return the numbers of a column, with one for null."""
    known = pc.fill_null(column, of_null) if column.null_count else column  # a call of Arrow costs as much as all else
    return known.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _encode(group: Sequence[_Piece], covered_to: int) -> bytes:
    """Encode pieces as one batch, which reaches to `covered_to` where that is near enough."""
    base, clock = group[0].base, group[0].clock
    records = group[0].records if len(group) == 1 else pa.concat_batches([piece.records for piece in group])
    offsets = np.concatenate([np.arange(piece.base - base, piece.end - base) for piece in group])
    times = _milliseconds(records)
    first_ms, max_ms = int(times[0]), int(times.max())
    deltas = times - first_ms if clock is None else np.zeros(len(times), np.int64)
    headers = records.column("headers")
    if records.column("tag").null_count < len(records):
        headers = pairs_column(_headers_with_tags(records))
        records = records.set_column(SCHEMA.get_field_index("headers"), "headers", headers)
    if len(records) < COLUMNS_FROM:
        keys, values = records.column("key").to_pylist(), records.column("value").to_pylist()
        pairs: list[Pairs] = [[]] * len(keys)
        if headers.null_count < len(headers):
            pairs = [pairs_of(row) for row in headers.to_pylist()]
        body: Buffer = encode_rows(offsets.tolist(), deltas.tolist(), keys, values, pairs)
    else:
        body = encode_columns(records, offsets, deltas)
    attributes = 0 if clock is None else APPEND_TIME
    last = max(int(offsets[-1]), min(covered_to - 1 - base, INT32_MAX))
    return write_batch(body, base, last, attributes, first_ms if clock is None else max_ms, max_ms, len(records))


def _headers_with_tags(records: pa.RecordBatch) -> list[Pairs]:
    """Return the headers of each row, with its tag before them."""
    rows = zip(records.column("headers").to_pylist(), records.column("tag").to_pylist(), strict=True)
    return [([] if tag is None else [(TAG_HEADER, tag.encode())]) + pairs_of(pairs) for pairs, tag in rows]


def pairs_of(row: list[dict[str, bytes | str | None] | None] | None) -> Pairs:
    """Roots hold records from before a rule: a header without a name gets an empty one."""
    return [((pair and pair["key"]) or "", pair and pair["value"]) for pair in row or ()]  # type: ignore[misc]

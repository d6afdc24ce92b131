"""Encode and decode blocks: rows of one target partition that wait in a hidden partition.

    a record of the hidden partition: | key: BlockHeader | value: one Arrow record batch message |

A block of the intake is what a producer sent. Its offset and the number of a row are the row's id.
Blocks of ranges were cut from others, so they name the ids of their rows.

Invariants: `decode_block` of any bytes gives a block whose columns have the same length, or raises
DataDamaged or FormatNotSupported. A row is never due before the floor of its block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from ledgermq.buffers import Buffer
from ledgermq.errors import CorruptFrame, DataDamaged, FormatNotSupported, InvalidRecord, MessageTooLarge
from ledgermq.protocol.batches.records import FEW_ROWS_MAX, decode_batch, timestamps_of
from ledgermq_broker.timed.state.columns import bytes_view
from ledgermq_broker.timed.state.format import ledgermq_timers_pb2 as fmt
from ledgermq_broker.timed.state.places import RangeId
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL

VERSION = 1
OFFSET_END = (1 << 63) - 1
ROW_END = (1 << 32) - 1
"""Above all offsets and rows of ids."""
DUE_MIN_US, DUE_MAX_US = -(1 << 62), 1 << 62


class Id(NamedTuple):
    """Names a message in its bundle: the offset of its block in the intake, and its row in that block."""

    offset: int
    row: int


class Key(NamedTuple):
    """The order of delivery: (effective due time, id)."""

    due_us: int
    offset: int
    row: int

    @property
    def id(self) -> Id:
        return Id(self.offset, self.row)


def end_of(due_us: int) -> Key:
    """Return the key that is above all messages that are due then: as a watermark, `due_us` is finished."""
    return Key(due_us, OFFSET_END, ROW_END)


START = end_of(0)
"""The watermark of a bundle that has delivered nothing. Floors are above it."""


class Source(NamedTuple):
    """Where a block can be read again. `range_id` None: the intake."""

    range_id: RangeId | None
    offset: int


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of rows. `offsets`: int64, `rows`: uint32, without nulls."""

    offsets: pa.Int64Array
    rows: pa.UInt32Array

    def take(self, indices: pa.Array) -> Ids:
        return Ids(self.offsets.take(indices), self.rows.take(indices))


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one target partition, as they are stored.

    `ids`: of the rows; None in the intake. `records`: validated, `ledgermq.protocol.batches.records.SCHEMA`.
    `size_bytes`: of the stored message. `principal`: a hash of the name of the principal that sent the rows; 0: not
    known.
    """

    topic_id: int
    partition: int
    floor_us: int
    records: pa.RecordBatch
    size_bytes: int
    ids: Ids | None = None
    principal: int = NO_PRINCIPAL

    @property
    def target(self) -> PartitionId:
        return PartitionId(self.topic_id, self.partition)


def encode_block(
    target: PartitionId, floor_us: int, data: Buffer, ids: Ids | None = None, *, principal: int = NO_PRINCIPAL
) -> LogRecord:
    """Return the record of a hidden partition. `data`: one Arrow record batch message. `ids`: one for each
    row; None in the intake. `principal`: see `Block`.
    """
    header = fmt.BlockHeader(
        version=VERSION,
        topic_id=target.topic_id,
        partition=target.partition,
        floor_us=floor_us,
        id_offsets=b"" if ids is None else bytes(bytes_view(ids.offsets, 8)),
        id_rows=b"" if ids is None else bytes(bytes_view(ids.rows, 4)),
        principal=principal,
    )
    return LogRecord(header.SerializeToString(deterministic=True), data)


def decode_block(key: bytes, value: Buffer | None) -> Block:
    """Decode and validate one record of a hidden partition.

    Raises DataDamaged. Raises FormatNotSupported for a block of a later version, because a reader that
    skips it would lose its messages.
    """
    try:
        header = fmt.BlockHeader.FromString(key)
    except DecodeError as error:
        raise DataDamaged(f"the header of a block of timed messages: {error}") from error
    if header.version == 0:
        raise DataDamaged("the header of a block of timed messages has no format version")
    if header.version != VERSION:
        raise FormatNotSupported(
            f"a block of timed messages has format version {header.version}, this program reads {VERSION}; "
            "upgrade this program"
        )
    if value is None:
        raise DataDamaged("a block of timed messages has no rows")
    try:
        records = decode_batch(value)
        timestamps_of(records)
    except (CorruptFrame, MessageTooLarge, InvalidRecord) as error:
        raise DataDamaged(f"a block of timed messages: {error}") from error
    if not 0 <= header.floor_us < DUE_MAX_US:
        raise DataDamaged(f"a block of timed messages has floor {header.floor_us} µs")
    ids = _ids_of(header.id_offsets, header.id_rows, records.num_rows) if header.id_offsets or header.id_rows else None
    size_bytes = len(key) + len(value)
    return Block(header.topic_id, header.partition, header.floor_us, records, size_bytes, ids, header.principal)


def effective_dues(block: Block) -> pa.Int64Array:
    """Return when each row is due, in microseconds, without nulls: its timestamp, or the floor of the
    block if that is later. A row without a timestamp is due at the floor.
    """
    timestamps = block.records.column("timestamp").view(pa.int64())
    if len(timestamps) <= FEW_ROWS_MAX:
        floor = block.floor_us
        return pa.array([floor if due is None or due < floor else due for due in timestamps.to_pylist()], pa.int64())
    return pc.max_element_wise(timestamps, pa.scalar(block.floor_us, pa.int64()))  # passes over nulls


def lowest_due_us(block: Block) -> int:
    """Return when the first row of a block is due."""
    return int(pc.min(effective_dues(block)).as_py())


def _ids_of(offsets: bytes, rows: bytes, count: int) -> Ids:
    if len(offsets) != 8 * count or len(rows) != 4 * count:
        raise DataDamaged(
            f"a block of {count} timed messages has {len(offsets)} bytes of id offsets and {len(rows)} of id rows"
        )
    ids = Ids(
        pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(offsets)]),
        pa.Array.from_buffers(pa.uint32(), count, [None, pa.py_buffer(rows)]),
    )
    if pc.min(ids.offsets).as_py() < 0:
        raise DataDamaged("a block of timed messages has an id with a negative offset")
    return ids

"""The log of one bundle's timed messages, and the batches in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ledgermq.protocol.batches.records import SCHEMA
from ledgermq_broker.timed.state.blocks import Block, Id, Key, Source, decode_block
from ledgermq_broker.timed.state.limits import DAY_US, MINUTE_US, SECOND_US
from ledgermq_broker.timed.state.places import PLACES, RangeId
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord

START_US = 1_700_000_000 * SECOND_US
YEAR_US = 366 * DAY_US
TARGETS = [PartitionId(5, 0), PartitionId(5, 1), PartitionId(9, 0)]
REMOVED_TOPIC = 9
SPANS_US = (0, SECOND_US, MINUTE_US, 10 * MINUTE_US, 2 * 60 * MINUTE_US, DAY_US, 30 * DAY_US, 365 * DAY_US)


@dataclass
class Log:
    """What is durable. A hidden partition is a list of blocks; None: below its log start, deleted."""

    state: dict[bytes, bytes] = field(default_factory=dict)
    intake: list[LogRecord | None] = field(default_factory=list)
    ranges: dict[RangeId, list[LogRecord | None]] = field(
        default_factory=lambda: {RangeId(far, place): [] for far in (False, True) for place in PLACES[far]}
    )

    def read(self, range_id: RangeId | None, offset: int) -> Block:
        record = (self.intake if range_id is None else self.ranges[range_id])[offset]
        assert record is not None, f"{range_id} is read at {offset}, below its log start"
        return decode_block(record.key, record.value)


@dataclass
class Sent:
    key: Key
    due_us: int
    target: PartitionId
    recalled: bool = False
    too_late: bool = False


def keys_of(source: Source, block: Block, above: Key) -> list[Key]:
    """Return the keys of a block's rows, one by one."""
    keys = []
    for row, due in enumerate(block.records["timestamp"].view(pa.int64()).to_pylist()):
        ids = block.ids
        message = Id(source.offset, row) if ids is None else Id(ids.offsets[row].as_py(), ids.rows[row].as_py())
        keys.append(Key(max(due, block.floor_us), *message))
    return [key for key in keys if key > above]


def batch_of(values: Sequence[int], dues: Sequence[int | None]) -> pa.RecordBatch:
    count = len(values)
    columns = [
        pa.array([b"k"] * count, pa.binary()),
        pa.array([b"%d" % value for value in values], pa.binary()),
        pa.nulls(count, SCHEMA.field("headers").type),
        pa.array(dues, pa.int64()).view(SCHEMA.field("timestamp").type),
        pa.array([0] * count, pa.int32()),
        pa.nulls(count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

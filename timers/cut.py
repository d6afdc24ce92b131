"""Cut rows of many blocks, in their order of delivery, into one batch for each target partition, or into
blocks for ranges. Everything is done for whole columns; nothing is done for single rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ledger.keys import PartitionId
from ledger.log.log_record import LogRecord
from timers.blocks import Block, Ids, Key, Source
from timers.places import Group, Range, RangeId


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of blocks, in order of delivery.

    `blocks`: those that `of` names. `of`: uint32, the block of each row. `rows`: uint32, its row there.
    `dues`: int64, effective, µs. `ids`: of each row.
    """

    blocks: Mapping[int, Block]
    of: pa.UInt32Array
    rows: pa.UInt32Array
    dues: pa.Int64Array
    ids: Ids

    def __len__(self) -> int:
        return len(self.of)


@dataclass(frozen=True, slots=True)
class Moved:
    """What a group appends to the hidden partition of one range. `range`: as it is after the append.
    `blocks`: the records to append, in order.
    """

    range: Range
    blocks: tuple[LogRecord, ...]


def rows_of(blocks: Sequence[tuple[Source, Block]], above: Key) -> Rows:
    """Return the rows of blocks whose keys are above a watermark, in order of delivery: for blocks that
    were read from a range.
    """
    raise NotImplementedError


def batches(rows: Rows) -> dict[PartitionId, pa.RecordBatch]:
    """Return the rows of each target partition, in order of delivery, with the columns of the record schema."""
    raise NotImplementedError


def range_blocks(rows: Rows, groups: Sequence[Group]) -> dict[RangeId, Moved]:
    """Return the blocks of each range. `groups`: a placement of `rows.dues`."""
    raise NotImplementedError

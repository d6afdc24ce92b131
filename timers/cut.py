"""Cut rows of many blocks, in their order of delivery, into one batch for each target partition, or into
blocks for ranges. Everything is done for whole columns, nothing for single rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from ledger.keys import PartitionId
from ledger.log.log_record import LogRecord
from ledgermq.protocol.records import encode_batch
from timers.blocks import encode_block
from timers.places import Group, Range, RangeId
from timers.rows import Rows


@dataclass(frozen=True, slots=True)
class Moved:
    """What a group appends to the hidden partition of one range, in order. `range`: as it is afterwards."""

    range: Range
    blocks: tuple[LogRecord, ...]


def batches(rows: Rows) -> dict[PartitionId, pa.RecordBatch]:
    """Return the rows of each target partition, in order of delivery, with the columns of the record schema.

    The bodies of all their blocks have to be in memory.
    """
    return {target: batch for target, batch, _ in _split(rows)}


def range_blocks(rows: Rows, groups: Sequence[Group]) -> dict[RangeId, Moved]:
    """Return the blocks of each range: one for each target partition. `groups`: a placement of `rows.dues`."""
    moved: dict[RangeId, Moved] = {}
    for group in groups:
        before = moved.get(group.range_id, Moved(group.range, ()))
        found = rows.slice(group.start, group.stop)
        # Their rows are due after the floors of their blocks: a floor is at most one above the present.
        blocks = tuple(
            encode_block(target, 0, encode_batch(batch), found.ids if positions is None else found.ids.take(positions))
            for target, batch, positions in _split(found)
        )
        after = replace(
            before.range,
            records=before.range.records + len(found),
            size_bytes=before.range.size_bytes + sum(len(block.key) + len(block.value or b"") for block in blocks),
        )
        moved[group.range_id] = Moved(after, before.blocks + blocks)
    return moved


def _split(rows: Rows) -> Iterator[tuple[PartitionId, pa.RecordBatch, pa.Array | None]]:
    """Yield the rows of each target, and their positions in `rows`, ascending; None: all of them."""
    parts: dict[PartitionId, list[tuple[pa.RecordBatch, pa.Array | None]]] = {}
    for number, positions in _by_block(rows):
        block = rows.blocks[number]
        indices = rows.rows if positions is None else rows.rows.take(positions)
        parts.setdefault(block.target, []).append((block.records.take(indices), positions))
    for target, found in sorted(parts.items()):
        if len(found) == 1:
            yield target, *found[0]
            continue
        positions = pa.concat_arrays([positions for _, positions in found])
        order = pc.sort_indices(positions)
        yield target, pa.concat_batches([batch for batch, _ in found]).take(order), positions.take(order)


def _by_block(rows: Rows) -> Iterator[tuple[int, pa.Array | None]]:
    """Yield the positions of each block's rows, ascending; None: all of them."""
    counts = {count["values"]: count["counts"] for count in pc.value_counts(rows.of).to_pylist()}
    if len(counts) == 1:
        yield next(iter(counts)), None
        return
    order = pc.sort_indices(rows.of)  # stable
    start = 0
    for number, count in sorted(counts.items()):
        yield number, order.slice(start, count)
        start += count

"""Cut rows of many blocks, in their order of delivery, into one batch for each target partition, or into
blocks for ranges. Everything is done for whole columns, nothing for single rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.protocol.batches.records import SCHEMA, serialized_batch
from ledgermq_broker.timed.state.blocks import Block, encode_block
from ledgermq_broker.timed.state.memory.rows import Rows
from ledgermq_broker.timed.state.places import Group, Range, RangeId
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL

K = TypeVar("K", bound=tuple[object, ...])

COPIED_BYTES_MAX = 64 * 1024
"""Mean size of blocks up to which they are copied as a whole, if rows of several are brought together: taking
rows of one block costs as much as copying this.
"""


@dataclass(frozen=True, slots=True)
class Moved:
    """What a group appends to the hidden partition of one range, in order. `range`: as it is afterwards."""

    range: Range
    blocks: tuple[LogRecord, ...]


class Gathering:
    """Rows of many blocks, whose bodies are given one after the other; each is needed once.

    `lacking`: the blocks that were not given yet.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._positions = {number: _positions(at, rows) for number, at in _by_block(rows)}
        self._parts: set[int] = set()
        self._blocks: dict[int, Block] = {}
        self.lacking = set(self._positions)

    def whole(self, number: int, block: Block) -> None:
        """Take a block that is in memory anyway."""
        self._blocks[number] = block
        self.lacking.discard(number)

    def part(self, number: int, block: Block) -> None:
        """Take a block that was read for this: only the wanted rows of it are kept."""
        wanted = self._rows.rows.take(self._positions[number])
        self._parts.add(number)
        self.whole(number, replace(block, records=_take([block.records], wanted), ids=None))

    def rows(self) -> Rows:
        """Return the rows, those of each target partition in one block, which has them in this order. No
        block may be lacking.
        """
        assert not self.lacking, f"blocks {sorted(self.lacking)} of timed messages were not given"
        numbers = [
            _ascending(len(at)).cast(pa.uint32()) if number in self._parts else self._rows.rows.take(at)
            for number, at in self._positions.items()
        ]
        back = pc.sort_indices(pa.concat_arrays([*self._positions.values()]))
        given = replace(self._rows, blocks=self._blocks, rows=pa.concat_arrays(numbers).take(back))
        blocks: dict[int, Block] = {}
        places: list[pa.Array] = []
        for number, (target, batch, positions) in enumerate(_split(given, _target)):
            blocks[number] = Block(*target, 0, batch, batch.nbytes)
            places.append(_positions(positions, given))
        back = pc.sort_indices(pa.concat_arrays(places))
        of = pa.concat_arrays([pa.repeat(pa.scalar(n, pa.uint32()), len(place)) for n, place in enumerate(places)])
        at = pa.concat_arrays([_ascending(len(place)) for place in places]).cast(pa.uint32())
        return replace(given, blocks=blocks, of=of.take(back), rows=at.take(back))


def _positions(found: pa.UInt64Array | None, rows: Rows) -> pa.UInt64Array:
    """Return positions in `rows`, where None stands for all of them."""
    return _ascending(len(rows)) if found is None else found


def _ascending(count: int) -> pa.UInt64Array:
    return pa.arange(0, count).cast(pa.uint64())


def batches(rows: Rows) -> dict[PartitionId, pa.RecordBatch]:
    """Return the rows of each target partition, in order of delivery, with the columns of the record schema.

    The bodies of all their blocks have to be in memory.
    """
    return {target: batch for target, batch, _ in _split(rows, _target)}


def _target(block: Block) -> PartitionId:
    return block.target


def range_blocks(rows: Rows, groups: Sequence[Group]) -> dict[RangeId, Moved]:
    """Return the blocks of each range: one for each target partition, and principal that sent rows to it. `groups`:
    a placement of `rows.dues`.
    """
    moved: dict[RangeId, Moved] = {}
    for group in groups:
        before = moved.get(group.range_id, Moved(group.range, ()))
        found = rows.slice(group.start, group.stop)
        topics, principals = Counter(before.range.topics), Counter(before.range.principals)
        blocks: list[LogRecord] = []
        size_bytes = 0
        for (target, principal), batch, positions in _split(found, lambda block: (block.target, block.principal)):
            # Their rows are due after the floors of their blocks: a floor is at most one above the present.
            ids = found.ids if positions is None else found.ids.take(positions)
            block = encode_block(target, 0, serialized_batch(batch), ids, principal=principal)
            blocks.append(block)
            topics[target.topic_id] += batch.num_rows
            block_bytes = len(block.key) + len(block.value or b"")
            size_bytes += block_bytes
            if principal != NO_PRINCIPAL:
                principals[principal] += block_bytes
        after = replace(
            before.range,
            records=before.range.records + len(found),
            size_bytes=before.range.size_bytes + size_bytes,
            topics=dict(topics),
            principals=dict(principals),
        )
        moved[group.range_id] = Moved(after, (*before.blocks, *blocks))
    return moved


def _split(rows: Rows, key: Callable[[Block], K]) -> Iterator[tuple[K, pa.RecordBatch, pa.Array | None]]:
    """Yield the rows of the blocks of each key, and their positions in `rows`, ascending; None: all of them."""
    parts: dict[K, list[tuple[Block, pa.Array | None]]] = {}
    for number, positions in _by_block(rows):
        block = rows.blocks[number]
        parts.setdefault(key(block), []).append((block, positions))
    for each in sorted(parts):
        found = parts[each]
        if len(found) == 1:
            [(block, positions)] = found
            yield (
                each,
                _take([block.records], rows.rows if positions is None else rows.rows.take(positions)),
                positions,
            )
        else:
            yield each, *_gathered(rows.rows, found)


def _gathered(rows: pa.UInt32Array, found: Sequence[tuple[Block, pa.Array]]) -> tuple[pa.RecordBatch, pa.Array]:
    """Return the rows at these positions of several blocks, by ascending position, and the positions."""
    positions = pa.concat_arrays([positions for _, positions in found])
    if sum(block.size_bytes for block, _ in found) > COPIED_BYTES_MAX * len(found):
        records = [_take([block.records], rows.take(positions)) for block, positions in found]
        indices = pa.array(range(len(positions)), pa.int64())
    else:
        records = [block.records for block, _ in found]
        begins = accumulate((batch.num_rows for batch in records[:-1]), initial=0)
        shifts = [
            pa.repeat(pa.scalar(begin, pa.int64()), len(at)) for begin, (_, at) in zip(begins, found, strict=True)
        ]
        indices = pc.add(pa.concat_arrays(shifts), rows.take(positions))
    order = pc.sort_indices(positions)
    return _take(records, indices.take(order)), positions.take(order)


def _take(records: Sequence[pa.RecordBatch], indices: pa.Array) -> pa.RecordBatch:
    """Take rows of batches that are numbered one after the other.

    A column of nulls is made instead: to take from one of lists costs twenty times as much as from others.
    """
    columns = []
    for number, field in enumerate(SCHEMA):
        found = [batch.column(number) for batch in records]
        if all(column.null_count == len(column) for column in found):
            columns.append(pa.nulls(len(indices), field.type))
        elif len(found) == 1:
            columns.append(found[0].take(indices))
        else:
            columns.append(pa.concat_arrays(found).take(indices))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


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

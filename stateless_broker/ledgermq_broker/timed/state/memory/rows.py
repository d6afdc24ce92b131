"""Bring rows of many blocks into their order of delivery.

An `Index` is what is known of one block's rows without its body: their keys, sorted, and their sizes. `Rows`
are rows of several blocks, merged. Everything is done for whole columns, nothing for single rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.protocol.batches.records import record_bytes
from ledgermq_broker.timed.state.blocks import OFFSET_END, Block, Ids, Key, Source, effective_dues
from ledgermq_broker.timed.state.columns import int64_view
from ledgermq_broker.timed.state.sizes import INTAKE_ROW_BYTES, RANGE_ROW_BYTES

ROW_BYTES = 32
"""What a row takes in a message apart from key, value and headers, about."""
_BY_KEY = [(name, "ascending") for name in ("due", "offset", "row")]


class Index:
    """The keys of a block's rows, ascending, and the size of each row.

    `dues`: effective, µs. `rows`: number of each row in the block. `ids` None: a block of the intake, whose
    rows have the ids (`offset`, number).
    """

    __slots__ = ("due_array", "dues", "ids", "offset", "rows", "sizes")

    def __init__(
        self, offset: int, due_array: pa.Int64Array, rows: pa.UInt32Array, sizes: pa.UInt32Array, ids: Ids | None
    ) -> None:
        self.offset = offset
        self.due_array = due_array
        self.dues = int64_view(due_array)
        self.rows = rows
        self.sizes = sizes
        self.ids = ids

    def __len__(self) -> int:
        return len(self.dues)

    @property
    def size_bytes(self) -> int:
        return len(self) * (INTAKE_ROW_BYTES if self.ids is None else RANGE_ROW_BYTES)

    def key(self, at: int) -> Key:
        if self.ids is None:
            return Key(self.dues[at], self.offset, self.rows[at].as_py())
        return Key(self.dues[at], self.ids.offsets[at].as_py(), self.ids.rows[at].as_py())

    def after(self, key: Key, low: int = 0, high: int | None = None) -> int:
        """Return the position of the first row above `key` in [low, high), `high` if there is none."""
        high = len(self) if high is None else high
        low = bisect_left(self.dues, key.due_us, low, high)
        high = bisect_right(self.dues, key.due_us, low, high)
        if key.offset == OFFSET_END:
            return high
        while low < high:
            middle = (low + high) // 2
            if self.key(middle) <= key:
                low = middle + 1
            else:
                high = middle
        return low

    def due_after(self, due_us: int, low: int, high: int) -> int:
        """Return the position of the first row in [low, high) that is due later; `high` if there is none."""
        return bisect_right(self.dues, due_us, low, high)


def index_of(source: Source, block: Block, *, above: Key, horizon_us: int | None = None) -> Index | None:
    """Return the index of a block's rows above a key and, with a horizon, not due after it; None: no row."""
    dues = effective_dues(block)
    if block.ids is None:
        order = pc.sort_indices(dues)  # stable
    else:
        columns = {"due": dues, "offset": block.ids.offsets, "row": block.ids.rows}
        order = pc.sort_indices(pa.record_batch(columns), sort_keys=_BY_KEY)
    ids = None if block.ids is None else block.ids.take(order)
    whole = Index(source.offset, dues.take(order), order, order, ids)
    low = whole.after(above)
    high = len(whole) if horizon_us is None else whole.due_after(horizon_us, low, len(whole))
    if low >= high:
        return None
    order = order.slice(low, high - low).cast(pa.uint32())
    sizes = pc.add(record_bytes(block.records), ROW_BYTES).take(order).cast(pa.uint32())
    if high - low == len(whole):
        return Index(source.offset, whole.due_array, order, sizes, ids)
    return Index(source.offset, dues.take(order), order, sizes, None if block.ids is None else block.ids.take(order))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of blocks, in order of delivery.

    `blocks`: those that `of` names, apart from those whose bodies are not in memory. `of`: uint32, the
    block of each row. `rows`: uint32, its row there. `dues`: int64, effective, µs. `ids`: of each row.
    `sizes`: uint32, about, in bytes.
    """

    blocks: Mapping[int, Block]
    of: pa.UInt32Array
    rows: pa.UInt32Array
    dues: pa.Int64Array
    ids: Ids
    sizes: pa.UInt32Array

    def __len__(self) -> int:
        return len(self.of)

    @property
    def size_bytes(self) -> int:
        return pc.sum(self.sizes).as_py() or 0

    def key(self, at: int) -> Key:
        return Key(self.dues[at].as_py(), self.ids.offsets[at].as_py(), self.ids.rows[at].as_py())

    def slice(self, start: int, stop: int) -> Rows:
        """Return the rows [start, stop)."""
        columns = (column.slice(start, stop - start) for column in self._columns())
        return self._with(columns)

    def filter(self, mask: pa.BooleanArray) -> Rows:
        """Leave out the rows for which the mask is false."""
        return self._with(column.filter(mask) for column in self._columns())

    def _columns(self) -> tuple[pa.Array, ...]:
        return self.of, self.rows, self.dues, self.ids.offsets, self.ids.rows, self.sizes

    def _with(self, columns: Iterator[pa.Array]) -> Rows:
        of, rows, dues, offsets, id_rows, sizes = columns
        return Rows(self.blocks, of, rows, dues, Ids(offsets, id_rows), sizes)


class Part(NamedTuple):
    """Rows [low, high) of the index of block `number`."""

    number: int
    known: Index
    low: int
    high: int


def merge(parts: Sequence[Part], blocks: Mapping[int, Block]) -> Rows:
    """Return the rows of all parts, in order of delivery."""
    columns = [_columns_of(part) for part in parts if part.low < part.high]
    if not columns:
        return Rows(blocks, _NO_UINT32, _NO_UINT32, _NO_INT64, Ids(_NO_INT64, _NO_UINT32), _NO_UINT32)
    merged = [pa.concat_arrays(arrays) for arrays in zip(*columns, strict=True)]
    if len(columns) > 1:
        keys = pa.record_batch({"due": merged[2], "offset": merged[3], "row": merged[4]})
        order = pc.sort_indices(keys, sort_keys=_BY_KEY)
        merged = [column.take(order) for column in merged]
    of, rows, dues, offsets, id_rows, sizes = merged
    return Rows(blocks, of, rows, dues, Ids(offsets, id_rows), sizes)


def rows_of(blocks: Sequence[tuple[Source, Block]], above: Key) -> Rows:
    """Return the rows of blocks whose keys are above a watermark, in order of delivery: for blocks that
    were read from a range.
    """
    found = [index_of(source, block, above=above) for source, block in blocks]
    parts = [Part(number, index, 0, len(index)) for number, index in enumerate(found) if index is not None]
    return merge(parts, {part.number: blocks[part.number][1] for part in parts})


_NO_UINT32, _NO_INT64 = pa.nulls(0, pa.uint32()), pa.nulls(0, pa.int64())  # `pa.array` would import pandas


def _columns_of(part: Part) -> tuple[pa.Array, ...]:
    index, low, count = part.known, part.low, part.high - part.low
    rows = index.rows.slice(low, count)
    if index.ids is None:
        offsets, id_rows = pa.repeat(pa.scalar(index.offset, pa.int64()), count), rows
    else:
        offsets, id_rows = index.ids.offsets.slice(low, count), index.ids.rows.slice(low, count)
    of = pa.repeat(pa.scalar(part.number, pa.uint32()), count)
    return of, rows, index.due_array.slice(low, count), offsets, id_rows, index.sizes.slice(low, count)

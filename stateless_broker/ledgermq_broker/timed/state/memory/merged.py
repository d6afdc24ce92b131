"""Merge rows of many blocks ahead of the chunks that need them.

Where rows of many blocks come in turns, each chunk would need nearly all of these bodies. Then the rows of the
merge are cut out once: each block is read once for a merge, however many chunks it makes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq_broker.timed.state.blocks import Key, Source, end_of
from ledgermq_broker.timed.state.columns import int64_view
from ledgermq_broker.timed.state.memory.cut import Gathering
from ledgermq_broker.timed.state.memory.rows import Part, Rows, merge
from ledgermq_broker.timed.state.memory.waiter import Waiter, with_bodies, without_bodies

MERGED_ROWS = 65_536
"""Rows that are merged ahead at most, about."""
MERGED_ROWS_MIN = 4096
MERGED_ROWS_OF_BLOCK = 64
"""Rows that are merged ahead for each block, at least. A block costs about as much as so many rows, whatever
is taken of it. A merge holds the event loop up, so blocks that follow one another are merged few at a time.
"""
CUT_BYTES, CUT_BLOCKS = 8 * 1024 * 1024, 2_048
"""Rows that are cut out of their blocks at a time have at most these bytes, and come from so many blocks, about."""
TURNS_OF_BLOCK = 4
"""Rows are cut out if their block changes so many times for each block, on average."""
MISSING_MAX = 64
"""Blocks to read that a chunk names at most, unless a single message needs more."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are delivered next. `to`: the watermark after them. `missing`: blocks whose bodies were
    dropped, some of them: read them, call `restore`, and ask for the chunk again. Then `rows` has no use.
    """

    rows: Rows
    to: Key
    missing: tuple[Source, ...]


@dataclass(slots=True)
class Merged:
    """The first rows that are due up to `to_us`, from `at` on not taken. `is_all`: there are no others.
    `sums`: sizes of all rows up to each one. `end`: the last key. `gathering`: what they are cut out by,
    until they are.
    """

    to_us: int
    rows: Rows
    waiters: dict[int, Waiter]
    is_all: bool
    sums: memoryview[int]
    end: Key
    gathering: Gathering | None
    at: int = 0

    def gather(self) -> tuple[Source, ...]:
        """Cut the rows out of their blocks; return blocks whose bodies are missing for that, `MISSING_MAX` at most."""
        assert self.gathering is not None
        lacking = [self.waiters[number] for number in self.gathering.lacking]
        for waiter in lacking:
            if waiter.block is not None:
                self.gathering.whole(waiter.number, waiter.block)
        if missing := without_bodies(lacking):
            return missing[:MISSING_MAX]
        self.rows, self.gathering, self.waiters = self.gathering.rows(), None, {}
        return ()

    def chunk(self, chunk_bytes: int) -> Chunk:
        """Return about `chunk_bytes` of the rows that are not taken, at least one."""
        before = self.sums[self.at - 1] if self.at else 0
        stop = max(self.at + 1, bisect_right(self.sums, before + chunk_bytes, self.at))
        rows = self.rows.slice(self.at, stop)
        missing: tuple[Source, ...] = ()
        if self.waiters:
            used = [self.waiters[number] for number in pc.unique(rows.of).to_pylist()]
            rows, missing = with_bodies(rows, used), without_bodies(used)
            if len(missing) > MISSING_MAX and len(rows) > 1:
                return self.chunk(chunk_bytes // 2)
        is_last = self.is_all and stop == len(self.rows)
        return Chunk(rows, end_of(self.to_us) if is_last else rows.key(len(rows) - 1), missing)

    def after(self, key: Key) -> int:
        """Return the position of the first row above `key`, from `at` on."""
        low, high = self.at, len(self.rows)
        while low < high:
            middle = (low + high) // 2
            if self.rows.key(middle) <= key:
                low = middle + 1
            else:
                high = middle
        return low


def enough(blocks: int) -> int:
    """Return how many rows of so many blocks are merged ahead."""
    return min(MERGED_ROWS, max(MERGED_ROWS_MIN, MERGED_ROWS_OF_BLOCK * blocks))


def stop_of(waiter: Waiter, to_us: int, bound: Key | None) -> int:
    """Return the position of the first row that is not due, or not below `bound`."""
    if bound is None:
        return waiter.index.due_after(to_us, waiter.at, waiter.stop)
    return waiter.index.after(bound, waiter.at, waiter.stop)  # no other block has a row with this key


def merged_of(parts: list[Part], waiters: Sequence[Waiter], to_us: int, *, is_all: bool, is_cut: bool) -> Merged:
    """Merge the parts, which are of these waiters. `is_all`: there are no other rows that are due up to `to_us`.
    `is_cut`: they are cut out of their blocks if these come in turns.
    """
    count = sum(part.high - part.low for part in parts)
    if count > 4 * MERGED_ROWS:
        parts = _first_of(parts)
        is_all = is_all and sum(part.high - part.low for part in parts) == count
    rows = merge(parts, {})
    sums = int64_view(pc.cumulative_sum(rows.sizes.cast(pa.int64())))
    gathering = None
    if is_cut and _turns(rows) > TURNS_OF_BLOCK * len(parts):
        stop = min(max(1, bisect_right(sums, CUT_BYTES)), _end_of_blocks(rows, CUT_BLOCKS))
        is_all = is_all and stop == len(rows)
        rows, sums = rows.slice(0, stop), sums[:stop]
        gathering = Gathering(rows)
    by_number = {waiter.number: waiter for waiter in waiters}
    return Merged(to_us, rows, by_number, is_all, sums, rows.key(len(rows) - 1), gathering)


def _turns(rows: Rows) -> int:
    """Return how often a row is of another block than the row before it."""
    count = len(rows) - 1
    return pc.sum(pc.not_equal(rows.of.slice(0, count), rows.of.slice(1))).as_py() or 0


def _end_of_blocks(rows: Rows, blocks: int) -> int:
    """Return how many rows come before the first one of a block after so many others."""
    numbers = pc.unique(rows.of)
    return len(rows) if len(numbers) <= blocks else pc.index(rows.of, numbers[blocks]).as_py()


def _first_of(parts: list[Part]) -> list[Part]:
    """Return some `MERGED_ROWS` first rows of parts with many more, and all others that are due with them."""
    dues = pa.concat_arrays([part.known.due_array.slice(part.low, part.high - part.low) for part in parts])
    at = pc.partition_nth_indices(dues, pivot=MERGED_ROWS)[MERGED_ROWS].as_py()
    last_us = dues[at].as_py()
    return [part._replace(high=part.known.due_after(last_us, part.low, part.high)) for part in parts]

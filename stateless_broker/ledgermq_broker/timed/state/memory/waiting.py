"""Hold the rows of one bundle that are in memory: an index of all of them, and bodies within a budget.

How a broker uses it (one term, one bundle; no call waits):

    w = Waiting()
    w.add(source, block, above=watermark, horizon_us=…)    # a block that is durable
    chunk = w.due(to_us, chunk_bytes)                      # what is delivered next; nothing changes
    for source in chunk.missing: w.restore(source, block)  # read again; then call `due` again
    w.taken(chunk.to)                                      # in the turn that appends the chunk
    piece = w.flush(end_offset, horizon_us, chunk_bytes)   # what leaves memory for ranges; nothing changes
    w.flushed(piece.end_offset, horizon_us)                # in the turn that appends it
    w.evict(body_bytes)                                    # not between `restore` and `taken`

The index of a row of the intake takes 16 bytes, that of a row of a range 28, a block some `BLOCK_BYTES` more.

Rows of many blocks are merged ahead of the chunks that need them (`merged`): the more blocks, the more rows at a
time. The merge is derived from the index, and dropped when the index changes below its end.

Invariants: rows leave in order of their keys, each once, and never before their time. Bodies are dropped in
the reverse order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq_broker.timed.state.blocks import DUE_MAX_US, Block, Id, Key, Source
from ledgermq_broker.timed.state.memory.merged import Chunk, Merged, enough, merged_of, stop_of
from ledgermq_broker.timed.state.memory.rows import Part, Rows, index_of, merge
from ledgermq_broker.timed.state.memory.waiter import Waiter, body_bytes, with_bodies, without_bodies
from ledgermq_broker.timed.state.sizes import DelayedSizes

FLUSHED_BLOCKS_MAX = 2_000
"""Blocks that one piece of a flush covers at most."""


@dataclass(frozen=True, slots=True)
class FlushPiece:
    """Rows of the intake, up to `end_offset`, that are due after the horizon. `missing`: as in `Chunk`."""

    rows: Rows
    end_offset: int
    missing: tuple[Source, ...]


class Waiting:
    """`rows`: number of rows in memory. `topics`: the same by topic id. `sizes`: what their blocks take, without the
    bodies. `body_bytes`: what those take that are in memory.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.topics: Counter[int] = Counter()
        self.sizes = DelayedSizes()
        self.body_bytes = 0
        self._number = 0
        self._waiters: dict[Source, Waiter] = {}
        self._heap: list[tuple[Key, int, Waiter]] = []
        """By the first row of each block; it may have blocks that have no rows any longer."""
        self._unflushed: list[int] = []
        """Offsets of blocks of the intake that were not flushed, ascending; some may be delivered."""
        self._merged: Merged | None = None

    @property
    def blocks(self) -> int:
        """Return the number of blocks in memory."""
        return len(self._waiters)

    @property
    def index_bytes(self) -> int:
        """Return the memory of the index."""
        return self.sizes.index.total

    @property
    def next_due_us(self) -> int | None:
        """Return when the first row is due; None if there is none."""
        head = self._first()
        return None if head is None else head.due_us

    def add(self, source: Source, block: Block, *, above: Key, horizon_us: int | None = None) -> int:
        """Take in the rows of a durable block whose keys are above the watermark and, with a horizon, that
        are not due after it (a block of the intake that was flushed). Return their number.

        A block is added once.
        """
        assert source not in self._waiters, f"block {source} of timed messages is in memory already"
        index = index_of(source, block, above=above, horizon_us=horizon_us)
        if index is None:
            return 0
        waiter = Waiter(self._number, source, index, block)
        self._number += 1
        self._waiters[source] = waiter
        self._push(waiter)
        if source.range_id is None and horizon_us is None:
            insort(self._unflushed, source.offset)
        self._count(waiter, len(index))
        self.sizes.add(waiter.principal, waiter.size)
        self.body_bytes += waiter.body_bytes
        if self._merged is not None and waiter.head.due_us <= self._merged.to_us:
            self._merged = None
        return len(index)

    def due(self, to_us: int, chunk_bytes: int) -> Chunk | None:
        """Return about `chunk_bytes` of rows that are due up to `to_us`, in order of their keys, at least
        one; None if there is none. Nothing changes.
        """
        merged = self._merged
        if merged is None or merged.to_us != to_us or merged.at == len(merged.rows):
            merged = self._merged = self._merge(to_us)
        if merged is None:
            return None
        if merged.gathering is not None and (missing := merged.gather()):
            return Chunk(merged.rows.slice(0, 0), merged.end, missing)
        return merged.chunk(chunk_bytes)

    def first(self, chunk_bytes: int) -> Chunk | None:
        """Return about `chunk_bytes` of the first rows, whenever they are due, as `due` does; but nothing is
        prepared for chunks after it, nor dropped that was prepared for a delivery.
        """
        merged = self._merge(DUE_MAX_US, is_cut=False)
        return None if merged is None else merged.chunk(chunk_bytes)

    def taken(self, to: Key) -> None:
        """Forget all rows at or below a watermark."""
        while (head := self._first()) is not None and head <= to:
            _, _, waiter = heapq.heappop(self._heap)
            at = waiter.index.after(to, waiter.at, waiter.stop)
            self._count(waiter, waiter.at - at)
            waiter.at = at
            if at < waiter.stop:
                self._push(waiter)
            else:
                self._remove(waiter)
        if self._merged is not None:
            self._merged.at = self._merged.after(to)

    def due_of(self, message: Id) -> int | None:
        """Return when a message of a block of the intake is due that is in memory: later than its sender
        said if it came late. None: it is not in memory, or came from a range.
        """
        waiter = self._waiters.get(Source(None, message.offset))
        if waiter is None:
            return None
        at = pc.index(waiter.index.rows, pa.scalar(message.row, pa.uint32())).as_py()
        return waiter.index.dues[at] if waiter.at <= at < waiter.stop else None

    def bytes_of(self, sources: Iterable[Source]) -> int:
        """Return the bytes of these blocks as they are stored, of those that are in memory."""
        return sum(self._waiters[source].block_bytes for source in sources if source in self._waiters)

    def restore(self, source: Source, block: Block) -> None:
        """Take the body of a block again, if any of its rows is in memory."""
        waiter = self._waiters.get(source)
        if waiter is None or waiter.block is not None:
            return
        gathering = None if self._merged is None else self._merged.gathering
        if gathering is not None and waiter.number in gathering.lacking:
            gathering.part(waiter.number, block)
            return
        waiter.block, waiter.body_bytes = block, body_bytes(block)
        self.body_bytes += waiter.body_bytes

    def flush(self, end_offset: int, horizon_us: int, chunk_bytes: int) -> FlushPiece:
        """Return about `chunk_bytes` of the rows that a flush moves: those of the oldest blocks of the
        intake below `end_offset` that were not flushed and are due after the horizon. Nothing changes.

        All durable blocks below `end_offset` have to be in memory. The piece may have no rows; it covers
        all offsets below its end.
        """
        found: list[Waiter] = []
        parts: list[Part] = []
        size_bytes = 0
        for count, offset in enumerate(self._unflushed):
            if offset >= end_offset or size_bytes >= chunk_bytes or count == FLUSHED_BLOCKS_MAX:
                end_offset = min(end_offset, offset)
                break
            waiter = self._waiters.get(Source(None, offset))
            if waiter is None:
                continue
            low = waiter.index.due_after(horizon_us, waiter.at, waiter.stop)
            if low < waiter.stop:
                found.append(waiter)
                parts.append(Part(waiter.number, waiter.index, low, waiter.stop))
                size_bytes += pc.sum(waiter.index.sizes.slice(low, waiter.stop - low)).as_py()
        return FlushPiece(with_bodies(merge(parts, {}), found), end_offset, without_bodies(found))

    def flushed(self, end_offset: int, horizon_us: int) -> None:
        """Forget the rows that were moved: of blocks of the intake below `end_offset`, due after the horizon."""
        count = bisect_right(self._unflushed, end_offset - 1)
        for offset in self._unflushed[:count]:
            waiter = self._waiters.get(Source(None, offset))
            if waiter is None:
                continue
            stop = waiter.index.due_after(horizon_us, waiter.at, waiter.stop)
            self._count(waiter, stop - waiter.stop)
            waiter.stop = stop
            if waiter.at == stop:
                self._remove(waiter)
        del self._unflushed[:count]
        if self._merged is not None and self._merged.end.due_us > horizon_us:
            self._merged = None

    def evict(self, body_bytes: int) -> int:
        """Drop bodies if they take more than `body_bytes`, those that are due last first, until they take
        three quarters of it. Return how many bytes were dropped.
        """
        before = self.body_bytes
        if before <= body_bytes:
            return 0
        held = [waiter for waiter in self._waiters.values() if waiter.block is not None]
        held.sort(key=lambda waiter: waiter.index.dues[waiter.at], reverse=True)
        for waiter in held:
            if self.body_bytes <= body_bytes * 3 // 4:
                break
            self._drop_body(waiter)
        return before - self.body_bytes

    def _count(self, waiter: Waiter, rows: int) -> None:
        """Note that rows of a block came into memory, or (below 0) left it."""
        self.rows += rows
        self.topics[waiter.topic_id] += rows
        if not self.topics[waiter.topic_id]:
            del self.topics[waiter.topic_id]

    def _push(self, waiter: Waiter) -> None:
        heapq.heappush(self._heap, (waiter.head, waiter.number, waiter))

    def _first(self) -> Key | None:
        """Return the key of the first row."""
        while self._heap and self._heap[0][2].at >= self._heap[0][2].stop:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _remove(self, waiter: Waiter) -> None:
        self._drop_body(waiter)
        del self._waiters[waiter.source]
        self.sizes.add(waiter.principal, waiter.size, -1)

    def _drop_body(self, waiter: Waiter) -> None:
        if waiter.block is not None:
            self.body_bytes -= waiter.body_bytes
            waiter.block = None

    def _merge(self, to_us: int, *, is_cut: bool = True) -> Merged | None:
        """Merge the first rows that are due up to `to_us`. `is_cut`: they are cut out of their blocks if these
        come in turns.

        Blocks are popped in order of their first rows, each time twice as many. The rows below the first
        row of the next block are final.
        """
        popped: list[Waiter] = []
        few = 2
        while True:
            head = self._first()
            while head is not None and head.due_us <= to_us and len(popped) < few:
                popped.append(heapq.heappop(self._heap)[2])
                head = self._first()
            bound = None if head is None or head.due_us > to_us else head
            parts = [Part(w.number, w.index, w.at, stop_of(w, to_us, bound)) for w in popped]
            count = sum(part.high - part.low for part in parts)
            if bound is None or count >= enough(len(parts)):
                break
            few *= 2
        for waiter in popped:
            self._push(waiter)
        if not popped:
            return None
        return merged_of(parts, popped, to_us, is_all=bound is None, is_cut=is_cut)

"""Hold the rows of one bundle that are in memory: an index of all of them, and bodies within a budget.

How a broker uses it (one term, one bundle; no call waits):

    w = Waiting()
    w.add(source, block, above=watermark, horizon_us=…)    # a block that is durable
    chunk = w.due(to_us, chunk_bytes)                      # what is delivered next; nothing changes
    for source in chunk.missing: w.restore(source, block)  # read again; then call `due` again
    w.taken(chunk.to)                                      # in the turn that appends the chunk
    piece = w.flush(end_offset, horizon_us, chunk_bytes)   # what leaves memory for ranges; nothing changes
    w.flushed(piece.end_offset, horizon_us)                # in the turn that appends it
    w.evict(body_bytes)

The index of a row of the intake takes 16 bytes, that of a row of a range 28, a block some `BLOCK_BYTES` more.

Invariants: rows leave in order of their keys, each once, and never before `to_us`. Bodies are dropped in
the reverse order.
"""

from __future__ import annotations

from dataclasses import dataclass

from timers.blocks import Block, Key, Source
from timers.cut import Rows

BLOCK_BYTES = 1536
"""Memory of a block in the index apart from its rows."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are delivered next. `to`: the watermark after them. `missing`: blocks whose bodies were
    dropped: read them, call `restore`, and ask for the chunk again; `rows.blocks` lacks them.
    """

    rows: Rows
    to: Key
    missing: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class FlushPiece:
    """Rows of the intake, up to `end_offset`, that are due after the horizon. `missing`: as in `Chunk`."""

    rows: Rows
    end_offset: int
    missing: tuple[Source, ...]


class Waiting:
    def __init__(self) -> None:
        self.rows = 0
        self.index_bytes = 0
        self.body_bytes = 0

    @property
    def next_due_us(self) -> int | None:
        """Return when the first row is due; None if there is none."""
        raise NotImplementedError

    def add(self, source: Source, block: Block, *, above: Key, horizon_us: int | None = None) -> int:
        """Take in the rows of a durable block whose keys are above the watermark and, with a horizon, that
        are not due after it (a block of the intake that was flushed). Return their number.
        """
        raise NotImplementedError

    def due(self, to_us: int, chunk_bytes: int) -> Chunk | None:
        """Return about `chunk_bytes` of rows that are due up to `to_us`, in order of their keys, at least
        one; None if there is none. Nothing changes.
        """
        raise NotImplementedError

    def taken(self, to: Key) -> None:
        """Forget all rows at or below a watermark."""
        raise NotImplementedError

    def restore(self, source: Source, block: Block) -> None:
        """Take the body of a block again, if any of its rows is in memory."""
        raise NotImplementedError

    def flush(self, end_offset: int, horizon_us: int, chunk_bytes: int) -> FlushPiece | None:
        """Return about `chunk_bytes` of the rows that a flush moves: those of the oldest blocks of the
        intake below `end_offset` that were not flushed and are due after the horizon. None if there is no
        such block. Nothing changes.
        """
        raise NotImplementedError

    def flushed(self, end_offset: int, horizon_us: int) -> None:
        """Forget the rows that were moved: of blocks of the intake below `end_offset`, due after the horizon."""
        raise NotImplementedError

    def evict(self, body_bytes: int) -> int:
        """Drop bodies, those that are due last first, until they take at most `body_bytes`. Return how
        many bytes were dropped.
        """
        raise NotImplementedError

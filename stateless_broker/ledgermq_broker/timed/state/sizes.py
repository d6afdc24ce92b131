"""Measure what delayed messages take, of all principals and of each.

    stored   bytes of blocks, which wait in the bundle: bound `waiting_bytes_max`
    index    memory of the owner for blocks whose rows are due soon, or came just now: bound `index_bytes`

A block counts as a whole, from the call that sends it until the last of its rows is delivered, moved or dropped.
"""

from __future__ import annotations

from typing import NamedTuple

from ledgermq_ledger.log.partitions.shares import SharedSum

STORED, INDEX = "delayed_bytes", "delayed_index_bytes"
"""Names of the bounds, in errors, metrics, and the use of a quota."""
BLOCK_BYTES = 1536
"""Memory of a block in the index apart from its rows."""
INTAKE_ROW_BYTES, RANGE_ROW_BYTES = 16, 28
"""Memory of a row in the index: of the intake, and of a range, whose rows name their ids."""


class Size(NamedTuple):
    """What blocks take."""

    stored_bytes: int
    index_bytes: int


NOTHING = Size(0, 0)


def size_in_intake(blocks: int, rows: int, stored_bytes: int) -> Size:
    """Return what so many blocks of the intake take, with all their rows in memory."""
    return Size(stored_bytes, blocks * BLOCK_BYTES + rows * INTAKE_ROW_BYTES)


def used(size: Size) -> dict[str, int]:
    """Return what a principal has, by the names of the two bounds."""
    return {STORED: size.stored_bytes, INDEX: size.index_bytes}


class DelayedSizes:
    """The sizes of blocks that are in one place."""

    def __init__(self) -> None:
        self.stored = SharedSum(STORED, "bytes of delayed messages")
        self.index = SharedSum(INDEX, "bytes of the index of delayed messages")

    def add(self, principal: int, size: Size, sign: int = 1) -> None:
        """Add a block that came; with `sign` -1, take away one that went."""
        self.stored.add(principal, sign * size.stored_bytes)
        self.index.add(principal, sign * size.index_bytes)

    @property
    def total(self) -> Size:
        return Size(self.stored.total, self.index.total)

    def of(self, principal: int) -> Size:
        """Return what a principal has; nothing for callers without one."""
        return Size(self.stored.of(principal), self.index.of(principal))

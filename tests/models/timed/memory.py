"""What an owner holds in memory of a bundle's timers. It ends with the term, or with a reload."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tests.models.timed.places import Key, Place
from tests.models.timed.state import Block, Message, Row


class Source(NamedTuple):
    """Where a body can be read again. `place` is None: in the intake."""

    place: Place | None
    offset: int


class Memory:
    """`closed`: the highest second that a delivery round has begun with.

    `next_offset`: of the intake; the blocks below are in memory, or were.
    """

    def __init__(self, closed: int, next_offset: int) -> None:
        self.is_ready = False
        self.closed = closed
        self.floor_max = 0
        """the highest floor of a block that was in memory"""
        self.next_offset = next_offset
        self.loading: set[Place] = set()
        """near ranges that are read, or were; nothing is placed there"""
        self.loaded: set[Place] = set()
        self.turn_ends: dict[Place, int] = {}
        """where a turning range ends in its partition"""
        self.delivering: Key | None = None
        self.evicted: set[Key] = set()
        """rows whose body is not in memory"""
        self._rows: dict[tuple[Key, Source], Message] = {}

    def add(self, row: Row, source: Source) -> None:
        """A row that is stored twice is here twice: nothing hides it."""
        self._rows[row.key, source] = row.message

    def add_block(self, block: Block, watermark: Key) -> None:
        for row in block.rows():
            if row.key > watermark:
                self.add(row, Source(None, block.offset))
        self.floor_max = max(self.floor_max, block.floor)

    def due(self, watermark: Key, last: Key) -> list[Row]:
        """Return what is above the watermark and not above `last`, in the order of delivery."""
        found = [(key, message) for (key, _), message in self._rows.items() if watermark < key <= last]
        return [Row(key, message) for key, message in sorted(found, key=lambda one: one[0])]

    def source(self, key: Key) -> Source:
        return next(source for there, source in self._rows if there == key)

    def take(self, keys: Iterable[Key]) -> None:
        gone = {*keys}
        self._rows = {row: message for row, message in self._rows.items() if row[0] not in gone}
        self.evicted -= gone

    def keys(self) -> list[Key]:
        return [key for key, _ in self._rows]

"""Ranges of due times, and the hidden partitions that hold them.

A range [from, to) is as long as its width and aligned to it. It has one partition of a pool, from an
offset on, until it is delivered (the narrowest width, near partitions) or *turned* into narrower
ranges (far partitions). The scale is small, so that a walk sees many ranges of each width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

MINUTE = 4
WIDTHS = (36, 12, MINUTE)
MARGINS = {36: 8, 12: 7, MINUTE: 1}
"""A flush places a message in a range that begins at least so many seconds later."""
LOAD_LEAD = 6
"""A near range is read so early. Wider margins are longer: a flush makes no range over a loaded one."""
HORIZON = 2
"""A flush leaves what is due within so many seconds in memory."""
NEAR_PLACES, FAR_PLACES = 6, 6
KEPT_FREE = 3
"""So many places of each pool are left to turns: one range is turned into three."""
END = 1_000_000


class Key(NamedTuple):
    """The order of delivery. `due`: the effective one; the rest is the id of the message."""

    due: int
    offset: int
    row: int

    @property
    def id(self) -> tuple[int, int]:
        return self.offset, self.row


def finished(second: int) -> Key:
    """Return the watermark of a second of which nothing is left."""
    return Key(second, END, END)


class Place(NamedTuple):
    """A partition of one of the two pools."""

    is_far: bool
    number: int


class Range(NamedTuple):
    """`begin`: its first offset in its partition that is still needed."""

    first: int
    width: int
    begin: int
    is_turning: bool = False

    @property
    def to(self) -> int:
        return self.first + self.width

    @property
    def turn_at(self) -> int:
        return self.first - MARGINS[self.width] // 2

    def holds(self, second: int) -> bool:
        return self.first <= second < self.to


def places(is_far: bool) -> Iterator[Place]:
    return (Place(is_far, number) for number in range(FAR_PLACES if is_far else NEAR_PLACES))


def range_at(ranges: Mapping[Place, Range], first: int, width: int) -> Place | None:
    """Return the place of the range of exactly this interval."""
    return next((place for place, there in ranges.items() if (there.first, there.width) == (first, width)), None)


def free_place(ranges: Mapping[Place, Range], width: int, kept_free: int = 0) -> Place | None:
    """Return a place for a new range; None: only `kept_free` of its pool are free."""
    free = [place for place in places(width != MINUTE) if place not in ranges]
    return free[0] if len(free) > kept_free else None


def next_minute(second: int) -> int:
    return -(-second // MINUTE) * MINUTE

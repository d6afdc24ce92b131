"""Decide which hidden partition a due time waits in: intervals of time are given to partitions.

A *range* is an interval of due times, aligned to its width from the epoch, that has one hidden partition.
Ranges of a minute are *near*, wider ones *far*. A due time goes to the widest range that begins late
enough to be turned (moved to narrower ranges) before its time.

A turn must always find places, or everything behind it would wait for it, and it for a place. So a flush
leaves free what a chain of turns needs: a month into days, a day into parts of two hours, one of these
into parts of ten minutes, and one of these into minutes. Turns run one at a time, the earliest first.

Invariants: each due time gets exactly one place, or the placement says what lacks one. No range begins at
or below `closed`, and nothing is placed in a range that is turning or loaded, or overlaps a loaded one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from timers.limits import DAY_US, HORIZON_LEAD_US, MINUTE_US, SECOND_US

WIDTHS_US = (30 * DAY_US, DAY_US, 120 * MINUTE_US, 10 * MINUTE_US, MINUTE_US)
"""Widths of ranges, the widest first; each is a multiple of the next one."""
NEAR_WIDTH_US = WIDTHS_US[-1]
MARGINS_US = dict(
    zip(WIDTHS_US, (600 * SECOND_US, 600 * SECOND_US, 300 * SECOND_US, 60 * SECOND_US, 30 * SECOND_US), strict=True)
)
"""How long after the present a range of each width begins at least, when something is placed in it."""
NEAR_PLACES = range(1, 17)
FAR_PLACES = range(128)
PLACES = (NEAR_PLACES, FAR_PLACES)
"""Numbers of the hidden partitions of one bundle, [near, far]; near 0 is the intake."""
RESERVED = (10, 30 + 12 + 12)
"""Places [near, far] that a flush leaves free for turns."""


class RangeId(NamedTuple):
    """Names a hidden partition of a bundle, and the range that it has at present."""

    far: bool
    place: int


@dataclass(frozen=True, slots=True)
class Range:
    """An interval [from_us, to_us) of due times that has a hidden partition, from `begin_offset` on.

    `turning`: its messages are being moved to narrower ranges; those below `begin_offset` are moved.
    `records`, `size_bytes`: what waits in it.
    """

    from_us: int
    to_us: int
    begin_offset: int
    turning: bool = False
    records: int = 0
    size_bytes: int = 0

    @property
    def width_us(self) -> int:
        return self.to_us - self.from_us

    @property
    def turn_us(self) -> int:
        """Return when a far range is turned."""
        return self.from_us - MARGINS_US[self.width_us] // 2

    def overlaps(self, from_us: int, to_us: int) -> bool:
        return self.from_us < to_us and from_us < self.to_us


class Group(NamedTuple):
    """The due times [start, stop) of a placement, and the range that they wait in, as it is before."""

    range_id: RangeId
    range: Range
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Placement:
    """`groups`: in order, without gaps. `lacking_us`: the first due time for which there is no place; the
    groups end there. None: all have one.
    """

    groups: tuple[Group, ...]
    lacking_us: int | None = None


def place(
    dues: pa.Int64Array,
    now_us: int,
    ranges: Mapping[RangeId, Range],
    closed_us: int,
    next_offset: Callable[[RangeId], int],
    *,
    loaded: Collection[RangeId] = (),
    turned: Range | None = None,
) -> Placement:
    """Decide where due times wait.

    Args:
        dues: ascending, above `closed_us`, without nulls.
        now_us: store's time.
        closed_us: the highest time that a delivery has begun with.
        next_offset: the offset that the next block of a hidden partition will have; for new ranges.
        loaded: near ranges that are in memory.
        turned: the range whose messages are placed, in narrower ones; None: they come from the intake.
    """
    raise NotImplementedError


def flush_horizon(now_us: int, ranges: Mapping[RangeId, Range]) -> int:
    """Return the horizon of a flush: what is due later goes to ranges. It is a whole minute, at least
    `HORIZON_LEAD_US` ahead, and later if there are too few near places for the minutes behind it.
    """
    raise NotImplementedError

"""The wheel of hidden partitions: which slot holds which seconds, and when one may be turned.

A level is a ring of slots. A *number* counts the slots of a level from second 0; slot `number %
SLOTS` holds it, so the same slot serves one number in each lap. The nearest level holds minutes,
from which records are delivered; the others are *turned*: their records are appended again, one or
more levels finer. The scale is small (a "minute" has 4 seconds, an "hour" 3 minutes, a "day" 3
hours), so that a walk sees many laps of each level.

A level has LEAD slots more than the next coarser slot is long. With FANOUT alone an hour could be
turned only in the instant between its two neighbours, while all delivery waits.
"""

from __future__ import annotations

from typing import NamedTuple

FANOUT, LEAD = 3, 1
SLOTS = FANOUT + LEAD
MINUTE = 4
SPANS = (MINUTE, MINUTE * FANOUT, MINUTE * FANOUT * FANOUT)
COARSE_LEVELS = (2, 1)
END = 1_000_000
"""The offset of a watermark whose second is finished."""


class Watermark(NamedTuple):
    """Everything before (second, offset) is delivered, and this pair, too."""

    second: int
    offset: int

    @property
    def next_second(self) -> int:
        """The first second of which something may be left."""
        return self.second + (self.offset == END)


class Place(NamedTuple):
    level: int
    number: int

    @property
    def slot(self) -> tuple[int, int]:
        return self.level, self.number % SLOTS


def place(due: int, base: int, turned: tuple[int, ...], lap_early: int = 0) -> Place | None:
    """Return the finest place for a due second; None: it lies beyond the wheel.

    `base`: the first second that is not finished. `turned`: the last number of each level that is
    turned as a whole. No slot takes a record of its next lap before this lap is closed.
    """
    number = due // MINUTE
    if base // MINUTE <= number < base // MINUTE + SLOTS + lap_early:
        return Place(0, number)
    for level in sorted(COARSE_LEVELS):
        number = due // SPANS[level]
        if turned[level] < number <= turned[level] + SLOTS + lap_early:
            return Place(level, number)
    return None


def may_turn(level: int, number: int, base: int, turned: tuple[int, ...]) -> bool:
    """Is there a finer slot, free of earlier laps, for everything that this number can hold?"""
    last_finer = number * FANOUT + FANOUT - 1
    return last_finer < base // MINUTE + SLOTS if level == 1 else last_finer <= turned[level - 1] + SLOTS


def is_turned(second: int, turned: tuple[int, ...]) -> bool:
    """Do no coarse slots hold anything of this second?"""
    return all(second // SPANS[level] <= turned[level] for level in COARSE_LEVELS)

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
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from ledgermq_broker.timed.state.columns import int64_view
from ledgermq_broker.timed.state.limits import DAY_US, HORIZON_LEAD_US, MINUTE_US, SECOND_US
from ledgermq_ledger import keys

WIDTHS_US = (30 * DAY_US, DAY_US, 120 * MINUTE_US, 10 * MINUTE_US, MINUTE_US)
"""Widths of ranges, the widest first; each is a multiple of the next one."""
NEAR_WIDTH_US = WIDTHS_US[-1]
MARGINS_US = dict(
    zip(WIDTHS_US, (600 * SECOND_US, 600 * SECOND_US, 300 * SECOND_US, 60 * SECOND_US, 30 * SECOND_US), strict=True)
)
"""How long after the present a range of each width begins at least, when something is placed in it."""
NEAR_PLACES = range(1, keys.NEAR_PARTITIONS)
FAR_PLACES = range(keys.FAR_PARTITIONS)
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
    `records`, `size_bytes`: what waits in it. `topics`: the records by topic id; without those that a release
    moved here which did not count them. `principals`: the bytes by principal, in the same way.
    """

    from_us: int
    to_us: int
    begin_offset: int
    turning: bool = False
    records: int = 0
    size_bytes: int = 0
    topics: Mapping[int, int] = field(default_factory=dict, hash=False)
    principals: Mapping[int, int] = field(default_factory=dict, hash=False)

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
        now_us: store's time. A turn that is late places as if it were at its time, or all would be in minutes.
        closed_us: the highest time that a delivery has begun with.
        next_offset: the offset that the next block of a hidden partition will have; for new ranges.
        loaded: near ranges that are in memory.
        turned: the range whose messages are placed, in narrower ones; None: they come from the intake.
    """
    view = int64_view(dues)
    allocation = _Allocation(ranges, closed_us, next_offset, loaded, turned)
    now_us = max(now_us, closed_us) if turned is None else min(now_us, turned.turn_us)
    groups: list[Group] = []
    at = 0
    while at < len(view):
        due_us = view[at]
        from_us, to_us = allocation.interval(due_us, now_us)
        found = allocation.range_for(due_us, from_us, to_us)
        if found is None:
            return Placement(tuple(groups), due_us)
        stop = bisect_left(view, min(to_us, found[1].to_us), at)
        groups.append(Group(*found, at, stop))
        at = stop
    return Placement(tuple(groups))


class _Allocation:
    """The ranges that a placement may use, and those that it begins."""

    def __init__(
        self,
        ranges: Mapping[RangeId, Range],
        closed_us: int,
        next_offset: Callable[[RangeId], int],
        loaded: Collection[RangeId],
        turned: Range | None,
    ) -> None:
        self._next_offset = next_offset
        self._closed_us = closed_us
        self._below_us = WIDTHS_US[0] + 1 if turned is None else turned.width_us
        self._reserved = RESERVED if turned is None else (0, 0)
        self._loaded = [ranges[range_id] for range_id in loaded]
        self._turning = {(r.from_us, r.to_us) for r in ranges.values() if r.turning}
        self._open = {range_id: r for range_id, r in ranges.items() if self._is_allowed(r.from_us, r.to_us)}
        self._known = {(r.from_us, r.to_us): range_id for range_id, r in self._open.items()}
        self._free = [
            deque(place for place in PLACES[far] if RangeId(bool(far), place) not in ranges) for far in (False, True)
        ]

    def _is_allowed(self, from_us: int, to_us: int) -> bool:
        return (
            from_us > self._closed_us
            and to_us - from_us < self._below_us
            and (from_us, to_us) not in self._turning
            and not any(found.overlaps(from_us, to_us) for found in self._loaded)
        )

    def interval(self, due_us: int, now_us: int) -> tuple[int, int]:
        """Return the interval that a due time should wait in."""
        for width_us in WIDTHS_US:
            from_us = due_us - due_us % width_us
            if from_us >= now_us + MARGINS_US[width_us] and self._is_allowed(from_us, from_us + width_us):
                return from_us, from_us + width_us
        from_us = due_us - due_us % NEAR_WIDTH_US
        return from_us, from_us + NEAR_WIDTH_US

    def range_for(self, due_us: int, from_us: int, to_us: int) -> tuple[RangeId, Range] | None:
        """Return the range of an interval, which may be new. If there is no free place: the widest narrower
        range that contains the due time, else the narrowest wider one, else None.
        """
        if (known := self._known.get((from_us, to_us))) is not None:
            return known, self._open[known]
        far = to_us - from_us != NEAR_WIDTH_US
        if self._is_allowed(from_us, to_us) and len(self._free[far]) > self._reserved[far]:
            range_id = RangeId(far, self._free[far].popleft())
            self._known[from_us, to_us] = range_id
            self._open[range_id] = Range(from_us, to_us, self._next_offset(range_id))
            return range_id, self._open[range_id]
        others = [(range_id, r) for range_id, r in self._open.items() if r.from_us <= due_us < r.to_us]
        width_us = to_us - from_us
        narrower = [other for other in others if other[1].width_us < width_us]
        return max(narrower, key=_width, default=min(others, key=_width, default=None))


def _width(found: tuple[RangeId, Range]) -> int:
    return found[1].width_us


def flush_horizon(now_us: int, ranges: Mapping[RangeId, Range], closed_us: int) -> int:
    """Return the horizon of a flush: what is due later goes to ranges. It is a whole minute, at least
    `HORIZON_LEAD_US` ahead, and later if there are too few near places for the minutes behind it.
    """
    now_us = max(now_us, closed_us)
    horizon_us = _up(now_us + HORIZON_LEAD_US, NEAR_WIDTH_US)
    wider_us = _up(now_us + MARGINS_US[WIDTHS_US[-2]], WIDTHS_US[-2])
    near = [found.from_us for range_id, found in ranges.items() if not range_id.far]
    free = len(NEAR_PLACES) - len(near) - RESERVED[False]
    minutes = [minute for minute in range(horizon_us, wider_us, NEAR_WIDTH_US) if minute not in near]
    lacking = len(minutes) - max(0, free)
    return horizon_us if lacking <= 0 else minutes[lacking - 1] + NEAR_WIDTH_US


def _up(time_us: int, width_us: int) -> int:
    return -(-time_us // width_us) * width_us

"""Tell from which of its homes a timed message will come into memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ledgermq_broker.timed.state.format import ledgermq_timers_pb2 as stored

INTAKE = (False, 0)


class Home(NamedTuple):
    """A block that holds a message: in which hidden partition of the bundle, (far, place), and its offset."""

    place: tuple[bool, int]
    offset: int


class Range(NamedTuple):
    from_us: int
    to_us: int
    begin_offset: int
    turning: bool


def comes_from(flushed: stored.Flushed, ranges: Mapping[tuple[bool, int], Range]) -> Callable[[Home, int], bool]:
    """Return what tells whether a message of that due time comes into memory from a home, by the state as it is now.
    It is asked for all that waits: so it reads `flushed` once.
    """
    begin = flushed.begin_offset
    pieces = tuple(zip(flushed.end_offsets, flushed.horizons_us, strict=True))

    def is_live(home: Home, due_us: int) -> bool:
        place, offset = home
        if place == INTAKE:
            if offset < begin:
                return False
            return next((due_us <= horizon_us for end, horizon_us in pieces if offset < end), True)
        found = ranges.get(place)
        return found is not None and offset >= found.begin_offset and found.from_us <= due_us < found.to_us

    return is_live

"""Levels of priority: a topic with `priority.levels` = N has N sub-queues, which are its partitions modulo N.

    partition   0 1 2 │ 3 4 5 │ 6 7        level = partition modulo N, here 3; place = partition div N
    level       0 1 2 │ 0 1 2 │ 0 1

So partitions that are added later leave those that exist in their levels. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

from ledgermq.errors import InvalidRecord

PRIORITY = "ledgermq.priority"
"""Header with the level of a message, as text."""
LEVELS_MAX = 10


def levels_of(settings: Mapping[str, str]) -> int:
    """Return the number of levels that a topic's settings name; 1: it has none."""
    given = settings.get("priority.levels", "")
    return max(1, int(given)) if given.isdecimal() else 1


def level_of(partition: int, levels: int) -> int:
    return partition % levels


def partitions_in(level: int, levels: int, partitions: int) -> int:
    """Return how many of a topic's partitions are of a level."""
    return max(0, -(-(partitions - level) // levels))


def partition_at(place: int, level: int, levels: int) -> int:
    """Return the partition at a place of its level."""
    return place * levels + level


def place_of(partition: int, levels: int) -> int:
    """Return the place of a partition in its level."""
    return partition // levels


def places_of(partitions: AbstractSet[int], level: int, levels: int) -> AbstractSet[int]:
    """Return the places of those partitions that are of a level."""
    return {place_of(partition, levels) for partition in partitions if level_of(partition, levels) == level}


def check_priority(priority: object) -> int:
    """Return a priority as programs give it. Raises InvalidRecord."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority < LEVELS_MAX:
        raise InvalidRecord(f"priority must be a whole number from 0 to {LEVELS_MAX - 1}, not {priority!r}")
    return priority


def nearest_level(text: bytes, levels: int) -> int:
    """Return the level that a header names: one above the highest counts as that, what is no number as 0."""
    return min(int(text), levels - 1) if text.isdigit() and len(text) <= LEVELS_MAX else 0


class Turns:
    """Whose turn it is: levels share what is taken by their weights, 2^level, so a level gets twice as much as
    the one below it, and none is left out. A level that was empty takes its turn at once, but does not make up
    for what it missed.

    This is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): over any time in which two levels
    both have messages, what they took, each divided by its weight, differs by at most one piece of each.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._next: dict[int, float] = {}
        """By level: the virtual time at which its next piece begins."""

    def first(self, levels: Collection[int]) -> int:
        """Return the level whose turn it is, of those that have messages. It changes nothing."""
        return min(levels, key=self._turn)

    def order(self, levels: Collection[int]) -> list[int]:
        """Return the levels in the order of their turns. It changes nothing."""
        return sorted(levels, key=self._turn)

    def took(self, level: int, records: int) -> None:
        """Note that a piece was taken from a level."""
        self._now = self._begin(level)
        self._next[level] = self._now + records / 2**level

    def _turn(self, level: int) -> tuple[float, int]:
        return self._begin(level), -level

    def _begin(self, level: int) -> float:
        return max(self._now, self._next.get(level, 0.0))

"""Schedule when each group has to be looked at next: a heap whose stale entries are dropped when
they reach the top.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from math import inf
from typing import Protocol, TypeVar


class HasDeadline(Protocol):
    """Any kind of group. `due_s`: when it has to be looked at next; None: it need not."""

    name: str
    due_s: float | None


G = TypeVar("G", bound=HasDeadline)


class Deadlines:
    """`group.due_s` is the entry that counts. A group that has postponed its deadline is looked at
    once too early, and put back.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def note(self, group: HasDeadline, due_s: float) -> None:
        """Schedule a look at the group for this time; an earlier one stays."""
        if group.due_s is None or due_s < group.due_s:
            group.due_s = due_s
            heapq.heappush(self._heap, (due_s, group.name))

    def next_s(self) -> float:
        return self._heap[0][0] if self._heap else inf

    def pop(self, groups: Mapping[str, G], now_s: float) -> G | None:
        """Return a group that is due, or None."""
        while self._heap and self._heap[0][0] <= now_s:
            due_s, name = heapq.heappop(self._heap)
            group = groups.get(name)
            if group is not None and group.due_s == due_s:
                group.due_s = None
                return group
        return None

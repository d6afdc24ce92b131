"""Find the members with the fewest or the most partitions: heaps whose stale entries are dropped
when they reach the top.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

Loads = dict[str, int]


class LeastLoaded:
    """The members of one class by load, then by their order.

    `loads` is shared; code that changes a load must call `changed`.
    """

    def __init__(self, loads: Loads, members: Iterable[str]) -> None:
        self._loads = loads
        self._order = {member: number for number, member in enumerate(members)}
        self._heap = [(loads[member], number, member) for member, number in self._order.items()]
        heapq.heapify(self._heap)

    def __contains__(self, member: str) -> bool:
        return member in self._order

    def changed(self, member: str) -> None:
        heapq.heappush(self._heap, (self._loads[member], self._order[member], member))

    def first(self) -> str:
        """Return the least loaded member, which stays in the heap."""
        while True:
            load, _, member = self._heap[0]
            if load == self._loads[member]:
                return member
            heapq.heappop(self._heap)

    def pop(self) -> str:
        """Remove and return the least loaded member; `changed` puts it back."""
        member = self.first()
        heapq.heappop(self._heap)
        return member


class MostLoaded:
    """The members of one class by load, highest first; only members that have a partition to give."""

    def __init__(self, loads: Loads, members: Iterable[str]) -> None:
        self._loads = loads
        self._order = {member: number for number, member in enumerate(members)}
        self._heap = [(-loads[member], number, member) for member, number in self._order.items()]
        heapq.heapify(self._heap)

    def changed(self, member: str) -> None:
        if member in self._order:
            heapq.heappush(self._heap, (-self._loads[member], self._order[member], member))

    def first(self) -> str | None:
        while self._heap:
            load, _, member = self._heap[0]
            if -load == self._loads[member]:
                return member
            heapq.heappop(self._heap)
        return None

    def drop_first(self) -> None:
        heapq.heappop(self._heap)

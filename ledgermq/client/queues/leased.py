"""Messages that are leased and that the program has not taken yet: one lane for each level of priority, which share
the program's time by the weights of `Turns`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator

from ledgermq.client.queues.message import QueueMessage
from ledgermq.protocol.levels import Turns


class LeasedAhead:
    def __init__(self) -> None:
        self._lanes: dict[int, deque[QueueMessage]] = {}
        self._turns = Turns()

    def __bool__(self) -> bool:
        return any(self._lanes.values())

    def __iter__(self) -> Iterator[QueueMessage]:
        for lane in self._lanes.values():
            yield from lane

    @property
    def has_levels(self) -> bool:
        """Return whether messages of several levels have come."""
        return len(self._lanes) > 1

    def add(self, level: int, messages: Iterable[QueueMessage]) -> None:
        self._lanes.setdefault(level, deque()).extend(messages)

    def full(self) -> set[int]:
        """Return the levels that have messages."""
        return {level for level, lane in self._lanes.items() if lane}

    def take(self, coming: Collection[int]) -> QueueMessage | None:
        """Take the next message; None: there is none, or it is the turn of a level whose messages are `coming`."""
        if not self:
            return None
        if not self.has_levels:
            return next(iter(self._lanes.values())).popleft()
        full = self.full()
        level = self._turns.first(full.union(coming))
        if level not in full:
            return None
        self._turns.took(level, 1)
        return self._lanes[level].popleft()

    def clear(self) -> None:
        for lane in self._lanes.values():
            lane.clear()

"""What a member does with messages that its program refuses, and those that wait to be returned again.
Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from ledgermq.buffers import MIB
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.groups.retries.moves import MovePolicy, size_of

CARRY_AFTER_S = 30.0
"""So long may copies that wait for their time hold up the commit of what is behind them."""
SLACK_S = 0.001
"""A timer may call so much before its time."""


@dataclass(slots=True)
class Waiting:
    """Refused messages of one partition that wait to be returned again. `counts(offset)`: whether one is
    still to be returned.
    """

    counts: Callable[[int], bool]
    bytes: int = 0
    _messages: dict[int, GroupMessage] = field(default_factory=dict)
    _due: list[tuple[float, int]] = field(default_factory=list)

    def add(self, message: GroupMessage, due_s: float) -> None:
        if message.offset in self._messages:  # of an earlier delivery
            self.remove(message.offset)
        self.bytes += size_of(message)
        self._messages[message.offset] = message
        heapq.heappush(self._due, (due_s, message.offset))

    def holds(self, offset: int) -> bool:
        """Return whether this message waits."""
        return offset in self._messages and self.counts(offset)

    @property
    def next_due_s(self) -> float | None:
        """Return when the next one is to be returned; None: there is none."""
        while self._due and not self.counts(self._due[0][1]):
            self._remove_first()
        return self._due[0][0] if self._due else None

    @property
    def first(self) -> int | None:
        """Return the lowest offset that waits."""
        return min((offset for offset in self._messages if self.counts(offset)), default=None)

    def is_due(self, now_s: float) -> bool:
        due_s = self.next_due_s
        return due_s is not None and due_s <= now_s + SLACK_S

    def take(self, now_s: float) -> GroupMessage | None:
        """Return one that is due."""
        return self._remove_first() if self.is_due(now_s) else None

    def remove(self, offset: int) -> GroupMessage:
        """Return one that is not to be returned to the program again."""
        message = self._messages.pop(offset)
        self._due = [each for each in self._due if each[1] != offset]
        heapq.heapify(self._due)
        self.bytes -= size_of(message)
        return message

    def remove_from(self, offset: int) -> None:
        """Forget the messages from this offset on, because they are delivered again."""
        for each in [each for each in self._messages if each >= offset]:
            self.remove(each)

    def clear(self) -> None:
        self._messages.clear()
        self._due.clear()
        self.bytes = 0

    def _remove_first(self) -> GroupMessage:
        message = self._messages.pop(heapq.heappop(self._due)[1])
        self.bytes -= size_of(message)
        return message


@dataclass(frozen=True, slots=True)
class Refusals:
    """`moves`: of a member with `Retry.levels`, where failed messages go. `in_order`: a refused message is
    delivered again with all later ones. Neither: it is returned again alone. Of each partition at most
    `held_max` failed messages, of `held_bytes_max` bytes, are held before its reading waits.
    """

    held_max: int = 10_000
    held_bytes_max: int = 64 * MIB
    moves: MovePolicy | None = None
    in_order: Callable[[int], float] | None = None
    """Called with the number of the failure; returns the seconds to wait."""

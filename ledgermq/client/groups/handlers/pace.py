"""Limit how many calls of a handler begin in a second. Pure: the caller gives the time.

Calls are spread evenly. A handler that had nothing to do may begin those of `BURST_S` at once, so that a
high rate does not need a timer for each call.
"""

from __future__ import annotations

from math import inf

BURST_S = 0.05
TICK_S = 1e-6
"""Shorter waits are none: a timer could not tell them from 0."""


class Pace:
    """`rate_per_s`: calls in a second; None: no limit."""

    def __init__(self, rate_per_s: float | None) -> None:
        self._gap_s = 0.0 if rate_per_s is None else 1 / rate_per_s
        self._next_s = -inf
        """When the next call may begin, if calls are spread evenly."""

    def wait_s(self, now_s: float) -> float:
        """Return how long to wait before the next call; 0: it may begin."""
        wait_s = self._next_s - now_s
        return wait_s if wait_s > TICK_S else 0.0

    def room(self, now_s: float, most: int) -> int:
        """Return how many calls may begin now, up to `most`."""
        if not self._gap_s:
            return most
        if self.wait_s(now_s):
            return 0
        held_s = min(BURST_S, max(0.0, now_s - self._next_s))
        return min(most, 1 + int(held_s / self._gap_s))

    def begun(self, now_s: float, count: int = 1) -> None:
        """Note that calls begin now."""
        if self._gap_s:
            self._next_s = max(self._next_s, now_s - BURST_S) + count * self._gap_s

"""Bound a rate: a bucket holds what may be used at once, and more flows in with time.

A use is let through while its bucket holds anything, and then takes its whole size, so the level may fall
below zero: the next uses wait for longer. So an amount of any size passes, and over any time t at most
`per_s * t + burst` and one amount more. The clock is given: seconds that never go back.
"""

from __future__ import annotations

WAIT_S_MIN = 0.001


class TokenBucket:
    """`per_s`: what flows in. `burst`: what it holds at most; by default the flow of a second. It is full at first."""

    __slots__ = ("_at_s", "_level", "burst", "per_s")

    def __init__(self, per_s: float, now_s: float, burst: float | None = None) -> None:
        self.per_s = per_s
        self.burst = per_s if burst is None else burst
        self._level = self.burst
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        self._level = min(self.burst, self._level + self.per_s * max(0.0, now_s - self._at_s))
        self._at_s = max(self._at_s, now_s)
        return self._level

    def wait_s(self, now_s: float) -> float:
        """Return how long it takes until the bucket holds something again; 0 if it does."""
        level = self.level(now_s)
        return 0.0 if level > 0 else max(WAIT_S_MIN, -level / self.per_s)

    def take(self, amount: float, now_s: float) -> None:
        self._level = self.level(now_s) - amount

    def change(self, per_s: float, now_s: float, burst: float | None = None) -> None:
        """Set another limit. What is owed stays owed, and is paid at the new rate. `burst`: as at first."""
        self.level(now_s)
        self.per_s = per_s
        self.burst = per_s if burst is None else burst
        self._level = min(self._level, self.burst)

"""Waits between attempts: doubled each time up to a bound, with jitter, so that many clients do not
come back at once.
"""

from __future__ import annotations

from ledgermq.sources import Sources


class Backoff:
    def __init__(self, sources: Sources, first_ms: int, most_ms: int) -> None:
        self._sources = sources
        self._first_s = first_ms / 1000
        self._most_s = most_ms / 1000
        self._next_s = self._first_s
        self.attempts = 0
        """Waits since the last success."""

    def next_s(self, at_least_ms: int | None = None) -> float:
        """Between a half and the whole of the present wait, in seconds; never less than what the
        other side asked for, up to a minute.
        """
        self.attempts += 1
        wait = self._next_s * self._sources.random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self._most_s)
        return max(wait, min((at_least_ms or 0) / 1000, 60.0))

    def reset(self) -> None:
        self.attempts = 0
        self._next_s = self._first_s

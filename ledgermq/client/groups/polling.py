"""Does the program still ask for messages? It may be away for as long as the settings say; inside
of a call it is never away.
"""

from __future__ import annotations

import asyncio


class Polling:
    """`signs` is raised by what is too frequent to look at a clock: each message of an iteration,
    each acknowledgement.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._inside = 0
        self._last_s = 0.0
        self._signs_seen = 0
        self.signs = 0
        self.asking: asyncio.Task[object] | None = None
        """The task that asked last."""

    def enter(self) -> None:
        self._inside += 1
        self.asking = asyncio.current_task()

    def leave(self, now_s: float) -> None:
        self._inside -= 1
        self._last_s = now_s

    def is_away(self, now_s: float) -> bool:
        if self._inside or self.signs != self._signs_seen:
            self._signs_seen = self.signs
            self._last_s = now_s
        return now_s - self._last_s > self._interval_s

"""Pulse: whether this process stood still, stopped by a signal, swapped out, or on a machine that
did. A timer that is late says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

BEAT_S = 0.5
STILL_S = 1.5
"""Shorter than others need to see it; longer than what a busy machine does every minute."""


class Pulse:
    """`on_going_on()` is called when the process goes on. `went_on_at`: when it did the last time,
    and `stood_still_s`: how long it had stood."""

    def __init__(self, on_going_on: Callable[[], None]) -> None:
        self._on_going_on = on_going_on
        self.went_on_at = -inf
        self.stood_still_s = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            late_s = loop.time() - due
            if late_s >= STILL_S:
                self.went_on_at, self.stood_still_s = loop.time(), late_s
                self._on_going_on()

"""Detect that this process stood still: it was stopped by a signal, swapped out, or its machine
stood still. A late timer reveals it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

BEAT_S = 0.5
STILL_S = 1.5
"""Shorter than the time after which other brokers notice; longer than the pauses of a busy machine.
"""


class Pulse:
    """`on_going_on()` is called when the process resumes. `went_on_at`: when it last resumed;
    `stood_still_s`: how long it had stood still.
    """

    def __init__(self, on_going_on: Callable[[], None]) -> None:
        self._on_going_on = on_going_on
        self.went_on_at = -inf
        self.stood_still_s = 0.0

    async def run(self) -> None:
        """Run until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            late_s = loop.time() - due
            if late_s >= STILL_S:
                self.went_on_at, self.stood_still_s = loop.time(), late_s
                self._on_going_on()

"""Pace the work on timed messages of one broker, so that it leaves the event loop to everyone else.

A million messages may be due at once, in all bundles of a broker. Each chunk of them is some milliseconds
of work that nothing interrupts. Chunks of all bundles take turns, one at a time, and after each turn the
loop is free for a rest in proportion to what the turn took. So this work has a bounded share of the loop
on a machine of any speed, and a live record meets at most one turn on its way in and one on its way out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

REST = 2.0
"""How many times as long as a turn the rest after it is: the work has a third of the loop at most."""


class Pace:
    """One for all bundles of a broker."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, in order of the calls. Do the work inside, and wait for nothing there: the rest
        that follows is in proportion to the time until then. In virtual time work takes none, nor do rests.
        """
        async with self._lock:
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            yield
            await asyncio.sleep(REST * (loop.time() - begun_s))

"""A start that several callers wait for, each for its own time. It goes on when a caller stops waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ledgermq.errors import Closed, Unavailable
from ledgermq.runtime.tasks import end, retrieve_error

FIRST_CALL_S_MIN = 1.0
"""A first call waits this long for the start, if its own time is shorter: a program that waits for no time at all
would never see it begin to work.
"""


class SharedStart:
    """`step()` is run once at a time, until it succeeds."""

    def __init__(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._step = step
        self._running: asyncio.Task[None] | None = None
        self.done = False
        self._closed = False

    async def wait(self, deadline: float | None = None) -> bool:
        """Return True once it has succeeded; False at `deadline`, a time of the loop's clock, or after
        FIRST_CALL_S_MIN, whichever is later. Raises what the step raises; the next call begins again.
        """
        if self.done:
            return True
        loop = asyncio.get_running_loop()
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run())
            self._running.add_done_callback(retrieve_error)
        running = self._running
        timeout_s = None if deadline is None else max(deadline - loop.time(), FIRST_CALL_S_MIN)
        await asyncio.wait([running], timeout=timeout_s)
        if not running.done():
            return False
        if running.cancelled():
            if self._closed:
                raise Closed("the object was closed while it began: make another one")
            raise Unavailable("the start was cancelled from outside; the next call begins again")
        running.result()
        return True

    async def _run(self) -> None:
        await self._step()
        self.done = True

    async def close(self) -> None:
        """End a start that runs; its callers get Closed."""
        self._closed = True
        await end(self._running)

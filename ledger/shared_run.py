"""One run shared by all who asked before it began."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class SharedRun:
    """`run` returns after a run of `work` that *began* after the call; those who ask during a run share the next one.

    So what a caller read before the call is covered by the work's first look, however many callers share it.
    """

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._current: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def run(self) -> None:
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._current))
        await asyncio.shield(self._next)

    async def _after(self, current: asyncio.Task[None] | None) -> None:
        if current is not None:
            await asyncio.wait([current])
        self._current, self._next = self._next, None
        await self._work()

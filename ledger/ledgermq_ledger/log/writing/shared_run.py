"""Share one run of some work among all callers that asked before it began."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ledgermq.errors import Unavailable
from ledgermq.runtime.tasks import retrieve_error


class SharedRun:
    """`run` returns after a run of `work` that *began* after the call; callers that come during a
    run share the next one.

    So the first look of the work sees everything that happened before the call, however many
    callers share it.
    """

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._current: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._closed = False

    async def run(self) -> None:
        """Wait for a run. Raises what the work raised; Unavailable after `close`.

        A caller that is cancelled leaves the run to the others.
        """
        if self._closed:
            raise Unavailable("the object was closed before the call")
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._current))
            self._next.add_done_callback(retrieve_error)
        shared = self._next
        await asyncio.wait([shared])
        if shared.cancelled():
            raise Unavailable("the run that this call shared was cancelled; retry")
        shared.result()

    async def close(self) -> None:
        """Cancel the run; no task is left behind."""
        self._closed = True
        tasks = [task for task in (self._current, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _after(self, current: asyncio.Task[None] | None) -> None:
        if current is not None:
            await asyncio.wait([current])
        self._current, self._next = self._next, None
        await self._work()

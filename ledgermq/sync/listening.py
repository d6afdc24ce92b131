"""Handlers without asyncio: functions run in threads, with the order, the retries and the
concurrency of `ledgermq.Client.handler`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from types import TracebackType
from typing import Self

from ledgermq.client.client import Client as AsyncClient
from ledgermq.client.groups.handlers.handler import Handler
from ledgermq.client.queues.runner import QueueHandler
from ledgermq.errors import DeadlineExceeded
from ledgermq.runtime.tasks import retrieve_error
from ledgermq.sync.background import Background, Callers

STOP_LOOK_S = 0.1


class Listener:
    """A handler that runs in the background until `close`. Made by `client.listen(…)`."""

    def __init__(self, background: Background, inner: AsyncClient, handler: Handler, callers: Callers) -> None:
        self._background = background
        self._stop = asyncio.Event()
        self.handler = handler
        self.callers = callers
        """The threads of its functions."""
        self.reported = False
        """Whether the program has seen how it ended."""
        self._running = asyncio.run_coroutine_threadsafe(inner.run_handlers(handler, stop=self._stop), background.loop)

    @property
    def running(self) -> bool:
        return not self._running.done()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it ends. Raises the error that ended it, or DeadlineExceeded after
        `timeout_s`.
        """
        try:
            if not self._running.done():
                self._background.run(self._ended(timeout_s), timeout_s)
            self.reported = self._running.done()
            self._running.result(0)
        except concurrent.futures.TimeoutError as error:
            if self._running.done():
                raise
            raise DeadlineExceeded(f"the listener is still running after {timeout_s} s") from error

    async def _ended(self, timeout_s: float | None) -> None:
        running = asyncio.wrap_future(self._running)
        await asyncio.wait([running], timeout=timeout_s)
        if running.done():
            retrieve_error(running)

    def close(self) -> None:
        """Begin no further call; finish and commit the running ones. In a function that the listener calls, this
        does not wait.

        Raises the error that ended the listener before, or DeadlineExceeded.
        """
        if not self._running.done():
            self._background.loop.call_soon_threadsafe(self._stop.set)
        if not self.callers.has_this:
            self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def run_until(
    inner: AsyncClient,
    handlers: tuple[Handler | QueueHandler, ...],
    stop: threading.Event | None,
    stopped: asyncio.Event,
    drain_s: float,
) -> None:
    """Call `run_handlers` until `stopped` is set, or the event of another thread."""

    async def look() -> None:
        while stop is not None and not stop.is_set():  # noqa: ASYNC110  an event of threads, which cannot be awaited
            await asyncio.sleep(STOP_LOOK_S)
        if stop is not None:
            stopped.set()

    looking = asyncio.create_task(look())
    try:
        await inner.run_handlers(*handlers, stop=stopped, drain_timeout_s=drain_s)
    finally:
        looking.cancel()

"""The thread on which a client of `ledgermq.sync` really lives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from ledgermq.client.home import Home
from ledgermq.errors import LedgerMQError, Unavailable, UsedElsewhere
from ledgermq.tasks import end

T = TypeVar("T")


class Background:
    """A thread that runs one event loop until `stop`."""

    def __init__(self) -> None:
        self.home = Home()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="ledgermq", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine of the other thread; interrupted, it is cancelled.

        Raises UsedElsewhere, Unavailable (closed).
        """
        try:
            self._check()
        except LedgerMQError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except CancelledError as error:
            raise Unavailable("the client was closed meanwhile") from error
        except BaseException:
            future.cancel()
            raise

    def _check(self) -> None:
        self.home.check_process()
        if threading.get_ident() == self._thread.ident:
            raise UsedElsewhere(
                "an asynchronous function of this client's own event loop cannot wait for the client: use a plain function"
            )
        if self.loop.is_closed():
            raise Unavailable("the client is closed")

    def stop(self) -> None:
        self.run(_end_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _end_all() -> None:
    await end(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
    await asyncio.get_running_loop().shutdown_asyncgens()


async def as_coroutine(work: Callable[[], T]) -> T:
    """To run in the background thread what has to be made or called there."""
    return work()

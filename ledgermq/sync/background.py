"""The background thread of a `ledgermq.sync` client."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from ledgermq.client.home import Home
from ledgermq.errors import LedgerMQError, Unavailable, UsedElsewhere
from ledgermq.runtime.loop_thread import LoopThread

T = TypeVar("T")


class Background:
    """A thread that runs one event loop until `stop`; it refuses calls that would wait forever."""

    def __init__(self) -> None:
        self.home = Home()
        self._thread = LoopThread("ledgermq")
        self.loop = self._thread.loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and return its result; an interrupt cancels it.

        Raises UsedElsewhere, Unavailable (closed).
        """
        try:
            self._check()
        except LedgerMQError:
            work.close()
            raise
        try:
            return self._thread.run(work)
        except CancelledError as error:
            raise Unavailable("the client was closed during the call") from error

    def _check(self) -> None:
        self.home.check_process()
        if self._thread.is_current:
            raise UsedElsewhere(
                "an asynchronous function of this client's own event loop cannot wait for the client: use a plain"
                " function"
            )
        if self.loop.is_closed():
            raise Unavailable("the client is closed")

    def stop(self) -> None:
        """End the thread. Raises like `run`."""
        self._check()
        self._thread.close()


async def as_coroutine(work: Callable[[], T]) -> T:
    """Run a plain function as a coroutine, so that the objects that it makes belong to the
    background thread.
    """
    return work()

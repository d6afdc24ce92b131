"""The background thread of a `ledgermq.sync` client."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from typing import Any, ParamSpec, TypeVar

from ledgermq.client.connection.home import Home
from ledgermq.client.groups.handlers.retry import Retry
from ledgermq.errors import Closed, LedgerMQError, UsedElsewhere
from ledgermq.runtime.process.log import ask_levels
from ledgermq.runtime.process.loop_thread import LoopThread
from ledgermq.runtime.tasks import called_in_thread

T = TypeVar("T")
P = ParamSpec("P")

CALLBACKS = ("on_assigned", "on_revoked", "on_lost", "on_failure")
"""Settings that are functions of the program."""
LOGGERS = ("ledgermq", "grpc", "asyncio", "concurrent.futures")


class Background:
    """A thread that runs one event loop until `stop`; it refuses calls that would wait forever.

    `stalled_s_max`: how long a call waits at most while the thread is blocked.
    """

    def __init__(self, stalled_s_max: float = 30.0) -> None:
        ask_levels(LOGGERS)
        self.home = Home()
        self._thread = LoopThread("ledgermq", stalled_s_max)
        self.loop = self._thread.loop

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine in the thread and return its result; an interrupt cancels it.

        `timeout_s`: the bound of the call, within which it ends by itself. Raises UsedElsewhere, Closed, and
        DeadlineExceeded while the thread is blocked.
        """
        try:
            self._check()
        except LedgerMQError:
            work.close()
            raise
        try:
            return self._thread.run(work, timeout_s)
        except CancelledError as error:
            raise Closed("the client was closed during the call") from error

    def _check(self) -> None:
        self.home.check_process()
        if self._thread.is_current:
            raise UsedElsewhere(
                "an asynchronous function of this client's own event loop cannot wait for the client: use a plain"
                " function"
            )
        if self.loop.is_closed():
            raise Closed("the client is closed")

    def stop(self) -> None:
        """End the thread. Raises like `run`."""
        self._check()
        self._thread.close()


class OneThread:
    """The calls of an object that one thread at a time may make; another thread is refused, and does not wait."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise UsedElsewhere(
                f"another thread is in a call of this {self._what} for messages: use one {self._what} for each thread"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Callers:
    """The threads in which functions of the program run now because the client called them."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    @property
    def has_this(self) -> bool:
        """Whether the calling thread is one of them: a wait for the end of the function that it runs would not end."""
        return threading.get_ident() in self._threads

    def noting(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function, so that its threads are known while it runs. Asynchronous ones have none."""
        if inspect.iscoroutinefunction(function):
            return function  # type: ignore[return-value]

        @functools.wraps(function, updated=())
        def noted(*args: P.args, **kwargs: P.kwargs) -> T:
            thread = threading.get_ident()
            self._threads.add(thread)
            try:
                return function(*args, **kwargs)
            finally:
                self._threads.discard(thread)

        return noted


async def as_coroutine(work: Callable[[], T]) -> T:
    """Run a plain function as a coroutine, so that the objects that it makes belong to the
    background thread.
    """
    return work()


def in_threads(settings: Mapping[str, Any], callers: Callers) -> dict[str, Any]:
    """Threads of callbacks. A callback may call the client, which waits for the event loop, so it
    must not run on the loop's thread.
    """

    def in_thread(callback: Callable[..., object]) -> Callable[..., Awaitable[object]]:
        return _in_thread(callers.noting(callback))

    given = {
        name: in_thread(value) if name in CALLBACKS and callable(value) else value for name, value in settings.items()
    }
    retry = given.get("retry")
    return {**given, "retry": retry.with_callbacks(in_thread)} if isinstance(retry, Retry) else given


def _in_thread(callback: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    async def call(*given: object) -> object:
        returned = await asyncio.to_thread(called_in_thread, callback, *given)
        return await returned if inspect.isawaitable(returned) else returned

    return call

"""Run an event loop in a separate thread, for callers without asyncio: Spark's driver, and
programs that use `ledgermq.sync`.

Invariant: a caller never waits for a thread that does nothing. The thread may be dead, or it waits
for a lock that its caller holds. A caller that waits has the loop call back; if the loop does not,
and the thread uses no processor time either, the wait ends after a bounded time.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, ParamSpec, TypeVar

from ledgermq.errors import DeadlineExceeded
from ledgermq.runtime.process.log import report
from ledgermq.runtime.tasks import end

T = TypeVar("T")
P = ParamSpec("P")

LOOK_S = 0.25
"""Interval at which a waiting caller looks whether the loop still runs."""
STALL_S_MIN = 1.0
"""A thread that does nothing for less than this is only late."""
BUSY_S_MIN = 0.001
"""A thread that has used so much processor time between two looks is at work."""


class LoopThread:
    """A daemon thread that runs one event loop until `close`.

    `loop`: the event loop, for callers that schedule work on it. `stalled_s_max`: a caller does not
    wait longer for a loop that calls nothing; None: as long as the thread lives.
    """

    def __init__(self, name: str, stalled_s_max: float | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self._stalled_s_max = stalled_s_max
        self._unanswered: threading.Event | None = None
        """What the loop had not set when a caller last stopped waiting."""
        self._cpu_clock: int | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """Run the loop. It logs errors of callbacks; what a log handler of the program raises then does not end it."""
        if hasattr(time, "pthread_getcpuclockid"):
            self._cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
        self.loop.set_exception_handler(_log_error)
        self.loop.run_forever()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread, where `run` would wait for itself."""
        return threading.get_ident() == self._thread.ident

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine in the loop and return its result, or raise what it raises.

        A caller that is interrupted (Ctrl-C) cancels it. `timeout_s`: the coroutine's own bound; a loop that
        calls nothing for so long is not waited for. Raises concurrent.futures.CancelledError when `close` has
        ended it, DeadlineExceeded when the loop is blocked.
        """
        bounds = [bound for bound in (self._stalled_s_max, timeout_s) if bound is not None]
        if self._unanswered is not None and not self._unanswered.is_set():
            bounds.append(STALL_S_MIN)  # an earlier caller has waited long enough
        future = self.start(work)
        try:
            return self._result(future, max(STALL_S_MIN, min(bounds)) if bounds else None)
        except BaseException:
            future.cancel()
            raise

    def _result(self, future: Future[T], stalled_s_max: float | None) -> T:
        """Wait for the result. Looks are counted, and not seconds: a process that was stopped for an hour
        continues as if nothing had happened.
        """
        looks, called, cpu_s = 0, None, 0.0
        while True:
            try:
                return future.result(LOOK_S)
            except TimeoutError:
                if future.done():
                    return future.result()
            if not self._thread.is_alive():
                raise CancelledError
            if called is None or called.is_set():
                called = self._call_back()
                looks = 0
            cpu_s, before_s = self._cpu_s(), cpu_s
            looks = looks + 1 if cpu_s - before_s < BUSY_S_MIN else 0
            if stalled_s_max is not None and looks * LOOK_S >= stalled_s_max:
                self._unanswered = called
                raise DeadlineExceeded(
                    f"the thread of the client does nothing: for {looks * LOOK_S:g} s it has been at {self._place()}."
                    " It may wait for a lock that the calling thread holds"
                )

    def _call_back(self) -> threading.Event:
        """Have the loop set an event."""
        called = threading.Event()
        self.call(called.set)
        return called

    def _cpu_s(self) -> float:
        """Return the processor time that the thread has used; 0 where the system does not tell."""
        try:
            return 0.0 if self._cpu_clock is None else time.clock_gettime(self._cpu_clock)
        except OSError:  # the thread has ended
            return 0.0

    def _place(self) -> str:
        """Return the line at which the thread is."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "its end" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop without waiting for it. Raises CancelledError, as `run`."""
        if not self._thread.is_alive():
            work.close()
            raise CancelledError
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise CancelledError from None

    def call(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function in the loop soon, without waiting for it. Raises concurrent.futures.CancelledError after
        `close`.
        """
        try:
            self.loop.call_soon_threadsafe(lambda: function(*args, **kwargs))
        except RuntimeError:  # the loop is closed
            raise CancelledError from None

    def close(self, *, waits_for_workers: bool = False) -> None:
        """Cancel running coroutines, wait until they have ended, and stop the thread.

        `waits_for_workers`: also wait until the loop's worker threads have finished their calls. Raises
        DeadlineExceeded when the loop is blocked; the thread then ends with the process.
        """
        if not self._thread.is_alive():
            if not self.loop.is_closed():
                self.loop.run_until_complete(_end_all())
                self.loop.close()
            return
        self.run(_end_all())
        if waits_for_workers:
            self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(self._stalled_s_max)
        if self._thread.is_alive():
            raise DeadlineExceeded(f"the thread of the client does not end: it is at {self._place()}")
        self.loop.close()


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    try:
        loop.default_exception_handler(context)
    except Exception:
        report()


async def _end_all() -> None:
    await end(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
    await asyncio.get_running_loop().shutdown_asyncgens()

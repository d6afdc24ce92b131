"""Run code in virtual time: an event loop whose clock jumps to the next timer as soon as nothing else
can run.

Code that waits an hour takes a millisecond; code in which every task waits forever fails at once.
While a function runs in a thread of the loop (`asyncio.to_thread`, `run_in_executor`), the clock stands
still, and the loop waits for it. Not for code that waits for other threads, sockets or processes. Two
runs with the same seed, and without threads, are the same run.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from ledgermq.sources import Sources

EPOCH_US = 1_764_547_200_000_000
"""What a virtual wall clock shows at the loop's time 0: 2025-12-01T00:00:00Z."""

RESOLUTION_S = 1e-8
"""Above the distance of neighbouring floats after a year, or no timer would be due at its own time."""

THREAD_S_MAX = 120
"""How long the loop waits for a function in a thread, in real time."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class AllTasksWait(Exception):
    """Nothing can run and no timer is set: a real loop would hang forever."""


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.threads = 0
        """Functions that run in threads of the loop."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and self.threads and timeout != 0:
            if not (ready := super().select(THREAD_S_MAX)):
                raise AllTasksWait(f"a function in a thread, which tasks wait for, has not ended for {THREAD_S_MAX} s")
            return ready
        if not ready and timeout is None:
            raise AllTasksWait(
                "every task waits, and nothing will ever wake one. In virtual time a task may wait for other tasks, for"
                " time, and for functions in asyncio.to_thread or run_in_executor. Code that waits for another thread,"
                " a socket or a process does not work there: use a cluster in real time,"
                " ledgermq.connect(tmp_path.as_uri())"
            )
        if not ready and timeout:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._clock_resolution = RESOLUTION_S

    def time(self) -> float:
        return self._jumping.now_s

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        running = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        running.add_done_callback(self._thread_ended)
        return running

    def _thread_ended(self, _: asyncio.Future[Any]) -> None:
        self._jumping.threads -= 1

    async def shutdown_default_executor(self, *given: Any) -> None:
        self._jumping.threads += 1  # a thread waits for the others
        try:
            await super().shutdown_default_executor(*given)
        finally:
            self._jumping.threads -= 1


def virtual_sources(seed: int = 0, skew_us: int = 0) -> Sources:
    """Seeded, and with a wall clock that follows the running loop's; `skew_us` makes one clock
    differ from another.
    """
    return Sources(lambda: EPOCH_US + skew_us + round(asyncio.get_running_loop().time() * 1e6), random.Random(seed))


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of `main()`, run to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())

"""Run code in virtual time: an event loop whose clock jumps to the next timer as soon as nothing else
can run.

Code that waits an hour takes a millisecond; code in which every task waits forever fails at once.
Not for code that uses threads, sockets or processes. Two runs with the same seed are the same run.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ledgermq.sources import Sources

EPOCH_US = 1_764_547_200_000_000
"""What a virtual wall clock shows at the loop's time 0: 2025-12-01T00:00:00Z."""

RESOLUTION_S = 1e-8
"""Above the distance of neighbouring floats after a year, or no timer would be due at its own time."""

T = TypeVar("T")


class AllTasksWait(Exception):
    """Nothing can run and no timer is set: a real loop would hang forever."""


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AllTasksWait("every task waits, and nothing will ever wake one")
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


def virtual_sources(seed: int = 0, skew_us: int = 0) -> Sources:
    """Seeded, and with a wall clock that follows the running loop's; `skew_us` makes one clock
    differ from another.
    """
    return Sources(lambda: EPOCH_US + skew_us + round(asyncio.get_running_loop().time() * 1e6), random.Random(seed))


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of `main()`, run to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())

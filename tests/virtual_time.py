"""A whole test in virtual time: an event loop whose clock jumps to the next timer as soon as
nothing else can run.

A test that waits an hour takes a millisecond; one in which every task waits forever fails at once.
Not for code that uses threads, sockets or processes. Two runs with the same seed are the same run.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from inspect import signature
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


VirtualTest = Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]
"""A decorator of coroutine functions that are tests."""


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the decorated coroutine function as a test in virtual time.

    Its parameters are fixtures and parameters of `parametrize`, as those of any test. What a
    fixture makes is made outside the loop.
    """

    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        run_virtual(lambda: test(*args, **named))

    return run


def virtual_in(world: Callable[[], AbstractAsyncContextManager[Any]], *names: str) -> VirtualTest:
    """Run the decorated test in virtual time, within `world()`.

    The world's value is the test's argument `names[0]`; with several names it is a tuple of as many
    values. The test's other parameters are fixtures.
    """

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @wraps(test)
        async def within(*args: Any, **named: Any) -> None:
            async with world() as found:
                values = found if len(names) > 1 else (found,)
                await test(*args, **dict(zip(names, values, strict=True)), **named)

        run = virtual(within)
        shown = signature(test)
        others = [parameter for name, parameter in shown.parameters.items() if name not in names]
        run.__signature__ = shown.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate

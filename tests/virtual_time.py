"""Decorate tests that run in virtual time (`ledgermq_tools.testing.virtual_time`)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from inspect import signature
from typing import Any

from ledgermq_tools.testing.virtual_time import (
    EPOCH_US,
    AllTasksWait,
    VirtualLoop,
    run_virtual,
    virtual_sources,
)

__all__ = [
    "EPOCH_US",
    "AllTasksWait",
    "VirtualLoop",
    "VirtualTest",
    "run_virtual",
    "virtual",
    "virtual_in",
    "virtual_sources",
]

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

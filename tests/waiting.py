"""Wait until a condition holds: `until` in a coroutine, `wait_until` in a thread.

`until` takes its time from the running loop: in a virtual test, these are seconds of virtual time.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from textwrap import dedent

WAIT_S_MAX = 60.0
BLOCKED_S_MAX = 120.0
"""Tests that block a thread wait for processes, which start slowly on a busy machine."""


async def until(
    condition: Callable[[], object | Awaitable[object]],
    timeout_s: float = WAIT_S_MAX,
    *,
    every_s: float = 0.01,
    what: str = "",
) -> None:
    """Return once `condition()` holds. `what` names it in the error; by default its source does."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while True:
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        assert loop.time() < end, _not_in_time(condition, timeout_s, what)
        await asyncio.sleep(every_s)


def wait_until(
    condition: Callable[[], object], timeout_s: float = BLOCKED_S_MAX, *, every_s: float = 0.05, what: str = ""
) -> None:
    """As `until`, and block the calling thread."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, _not_in_time(condition, timeout_s, what)
        time.sleep(every_s)


def _not_in_time(condition: Callable[[], object], timeout_s: float, what: str) -> str:
    if not what:
        try:
            what = dedent(inspect.getsource(condition)).strip()
        except (OSError, TypeError):  # a built-in method has no source
            what = repr(condition)
    return f"waited {timeout_s:g} s in vain for: {what}"

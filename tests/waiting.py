"""Wait until a condition holds: `until` in a coroutine, `wait_until` in a thread.

`until` takes its time from the running loop: in a virtual test, these are seconds of virtual time.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from textwrap import dedent

import ledgermq

WAIT_S_MAX = 60.0
BLOCKED_S_MAX = 120.0
"""Tests that block a thread wait for processes, which start slowly on a busy machine."""
LATE_S_MAX = 15.0
"""A busy machine ends a pause late by less than this; a machine that was stopped, by more."""


async def until(
    condition: Callable[[], object | Awaitable[object]],
    timeout_s: float = WAIT_S_MAX,
    *,
    every_s: float = 0.01,
    what: str = "",
) -> None:
    """Wait until `condition()` holds. `what` names it in the error; by default its source does."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while True:
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        now = loop.time()
        assert now < end, _not_in_time(condition, timeout_s, what)
        await asyncio.sleep(every_s)
        end += _stood_still_s(loop.time() - now - every_s)


async def until_two_own(client: ledgermq.Client) -> None:
    """Wait until the cluster's bundles have two owners."""

    async def two_own() -> bool:
        return len({bundle.owner for bundle in (await client.describe_cluster()).bundles}) >= 2

    await until(two_own, every_s=0.1)


def wait_until(
    condition: Callable[[], object], timeout_s: float = BLOCKED_S_MAX, *, every_s: float = 0.05, what: str = ""
) -> None:
    """As `until`, and block the calling thread."""
    end = time.monotonic() + timeout_s
    while not condition():
        now = time.monotonic()
        assert now < end, _not_in_time(condition, timeout_s, what)
        time.sleep(every_s)
        end += _stood_still_s(time.monotonic() - now - every_s)


def _stood_still_s(late_s: float) -> float:
    """Return the part of a late wake-up in which the whole machine was stopped (`tests.running_time`)."""
    return late_s if late_s > LATE_S_MAX else 0.0


def _not_in_time(condition: Callable[[], object], timeout_s: float, what: str) -> str:
    if not what:
        try:
            what = dedent(inspect.getsource(condition)).strip()
        except (OSError, TypeError):  # a built-in method has no source
            what = repr(condition)
    return f"waited {timeout_s:g} s in vain for: {what}"

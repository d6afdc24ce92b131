"""Wait for an event, with a time limit.

Time is the running loop's clock, which a simulation replaces.
"""

from __future__ import annotations

import asyncio


async def wait_until(event: asyncio.Event, deadline: float | None) -> bool:
    """Wait until the event is set, or until the loop's clock shows `deadline` (None: no limit).

    Return whether the event is set. If the event is set already, that takes precedence over a
    deadline that has passed.
    """
    try:
        async with asyncio.timeout_at(deadline):
            return await event.wait()
    except TimeoutError:
        return event.is_set()


async def wait_for(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until the event is set, at most `timeout_s` seconds (None: no limit).

    Return whether the event is set.
    """
    return await wait_until(event, None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s)

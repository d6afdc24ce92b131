"""Wait for an event, but only for so long.

Time is the running loop's clock, which a simulation replaces.
"""

from __future__ import annotations

import asyncio


async def wait_until(event: asyncio.Event, deadline: float | None) -> bool:
    """Wait until the event is set, or until the loop's clock shows `deadline` (None: no limit).

    Return whether the event is set. An event that is set already wins over a deadline that has
    passed.
    """
    try:
        async with asyncio.timeout_at(deadline):
            return await event.wait()
    except TimeoutError:
        return event.is_set()


async def wait_for(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until the event is set, `timeout_s` seconds at most (None: no limit).

    Return whether the event is set.
    """
    return await wait_until(event, None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s)

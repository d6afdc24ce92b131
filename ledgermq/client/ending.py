"""Ending tasks: cancelled and waited for, so that none outlives who made it; and what groups of them raise."""

from __future__ import annotations

import asyncio
from typing import Any


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel and wait; what the tasks raised is dropped. Whoever is cancelled meanwhile, even again, still waits: none is left running."""
    given = [task for task in tasks if task is not None]
    living = [task for task in given if not task.done()]
    for task in living:
        task.cancel()
    interrupted: asyncio.CancelledError | None = None
    while living := [task for task in living if not task.done()]:
        try:
            await asyncio.wait(living)
        except asyncio.CancelledError as error:
            interrupted = error
    for task in given:
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not complain that nobody did
    if interrupted is not None:
        raise interrupted


def first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first that is not a group itself."""
    first = failures.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first

"""Pump a stream of requests: admit them in order as they arrive, and answer in the same order, while
a bounded number waits for answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

WINDOW_REQUESTS = 64
"""Requests of one stream that may wait for their answers."""

R = TypeVar("R")
P = TypeVar("P")
A = TypeVar("A")


async def answered_in_order(
    requests: AsyncIterator[R],
    admit: Callable[[R], Awaitable[P]],
    answer: Callable[[P], Awaitable[A]],
    name: str,
) -> AsyncIterator[A]:
    """Yield answers in the order of the requests; at most `WINDOW_REQUESTS` requests wait for
    theirs. An error of `admit`, or of the stream, is raised after the answers before it.
    """
    waiting: asyncio.Queue[tuple[P] | Exception | None] = asyncio.Queue(WINDOW_REQUESTS)

    async def admit_all() -> None:
        end: Exception | None = None
        try:
            async for request in requests:
                await waiting.put((await admit(request),))
        except Exception as error:
            end = error
        await waiting.put(end)

    reader = asyncio.create_task(admit_all(), name=name)
    try:
        while (admitted := await waiting.get()) is not None:
            if isinstance(admitted, Exception):
                raise admitted
            yield await answer(admitted[0])
        await reader
    finally:
        reader.cancel()

"""Pump a stream of requests: admit them in order as they arrive, and answer each as its caller wants it, while
a bounded number waits for answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from ledgermq.errors import InvalidRequest

WINDOW_REQUESTS = 64
"""Requests of one stream that may wait for their answers."""

R = TypeVar("R")
P = TypeVar("P")
A = TypeVar("A")


async def answered(
    requests: AsyncIterator[R],
    admit: Callable[[R], Awaitable[P]],
    answer: Callable[[P], Awaitable[A]],
    number_of: Callable[[R], int],
    name: str,
) -> AsyncGenerator[tuple[int, A]]:
    """Yield answers, each with the number of its request: if the first request has one, when they are known, else in
    the order of the requests. At most `WINDOW_REQUESTS` requests wait for theirs. An error of `admit`, or of the
    stream, is raised after the answers to what came before. Raises InvalidRequest where numbers do not rise.
    """
    coming = aiter(requests)
    first = [request for request in (await anext(coming, None),) if request is not None]
    if not first:
        return
    pump = _when_known if number_of(first[0]) else _in_order
    async with aclosing(pump(_with_first(first, coming), admit, answer, number_of, name)) as answers:
        async for found in answers:
            yield found


async def _with_first(first: list[R], others: AsyncIterator[R]) -> AsyncIterator[R]:
    yield first.pop()  # only the receiver holds a request
    async for request in others:
        yield request


async def _in_order(
    requests: AsyncIterator[R],
    admit: Callable[[R], Awaitable[P]],
    answer: Callable[[P], Awaitable[A]],
    number_of: Callable[[R], int],
    name: str,
) -> AsyncGenerator[tuple[int, A]]:
    waiting: asyncio.Queue[tuple[int, P] | Exception | None] = asyncio.Queue(WINDOW_REQUESTS)

    async def admit_all() -> None:
        end: Exception | None = None
        try:
            async for request in requests:
                await waiting.put((number_of(request), await admit(request)))
        except Exception as error:
            end = error
        await waiting.put(end)

    reader = asyncio.create_task(admit_all(), name=name)
    try:
        while (admitted := await waiting.get()) is not None:
            if isinstance(admitted, Exception):
                raise admitted
            yield admitted[0], await answer(admitted[1])
        await reader
    finally:
        reader.cancel()


async def _when_known(
    requests: AsyncIterator[R],
    admit: Callable[[R], Awaitable[P]],
    answer: Callable[[P], Awaitable[A]],
    number_of: Callable[[R], int],
    name: str,
) -> AsyncGenerator[tuple[int, A]]:
    """A request whose bundle has a slow put delays no answer to another one."""
    known: asyncio.Queue[tuple[int, A] | Exception | None] = asyncio.Queue()
    room = asyncio.Semaphore(WINDOW_REQUESTS)  # bounds `known`, too

    async def give(number: int, admitted: P) -> None:
        known.put_nowait((number, await answer(admitted)))

    async def admit_all(answering: asyncio.TaskGroup) -> Exception | None:
        last = 0
        try:
            async for request in requests:
                number = number_of(request)
                if number <= last:
                    return InvalidRequest(f"numbers of frames rise within a stream: {number} comes behind {last}")
                last = number
                await room.acquire()
                answering.create_task(give(number, await admit(request)))
        except Exception as error:
            return error
        return None

    async def run() -> None:
        try:
            async with asyncio.TaskGroup() as answering:
                end = await admit_all(answering)
        except ExceptionGroup as failed:
            end = failed.exceptions[0]
        known.put_nowait(end)

    reader = asyncio.create_task(run(), name=name)
    try:
        while (found := await known.get()) is not None:
            if isinstance(found, Exception):
                raise found
            yield found
            room.release()
        await reader
    finally:
        reader.cancel()

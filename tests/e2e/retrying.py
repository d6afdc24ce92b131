"""Handlers that run, what they were called with, and what a topic has in the end."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import ledgermq
from tests.waiting import until


@asynccontextmanager
async def running(client: ledgermq.Client) -> AsyncIterator[None]:
    """All handlers of the client; stopped at the end."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(client.run_handlers(stop=stop))
        yield
        stop.set()


async def until_in(client: ledgermq.Client, topic: str, count: int) -> list[ledgermq.Message]:
    """The messages of a topic, once there are so many: those of a transaction appear after its commit."""
    found: list[ledgermq.Message] = []

    async def are_there() -> bool:
        found[:] = await all_of(client, topic)
        return len(found) >= count

    await until(are_there, every_s=0.2)
    assert len(found) == count
    return found


async def all_of(client: ledgermq.Client, topic: str) -> list[ledgermq.Message]:
    async with client.consumer(topic, until_end=True) as consumer:
        return [message async for message in consumer]


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Calls:
    """A handler function that fails at the poison offsets of partition 0, and notes its calls."""

    def __init__(self, *poison: int) -> None:
        self.poison = set(poison)
        self.at_s: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        self.done: Counter[tuple[int, int]] = Counter()

    async def __call__(self, message: ledgermq.GroupMessage) -> None:
        place = message.partition, message.offset
        self.at_s[place].append(now_s())
        if message.partition == 0 and message.offset in self.poison:
            raise ZeroDivisionError(message.offset)
        self.done[place] += 1

    def waits(self, offset: int) -> list[float]:
        return [after - before for before, after in pairwise(self.at_s[0, offset])]

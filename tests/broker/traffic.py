"""Programs that go on while something happens to the brokers: a producer of numbered records, and a group
that reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import ledgermq

RECORDS, EVERY_S, KEYS = 300, 0.02, 8
DONE_S_MAX = 60.0


@dataclass
class Traffic:
    """`sent`: how many records are acknowledged. `seen`: their numbers, as they were read."""

    sent: int = 0
    seen: list[int] = field(default_factory=list)


@asynccontextmanager
async def traffic(client: ledgermq.Client, topic: str) -> AsyncIterator[Traffic]:
    """Send and read beside the block; when it ends, all has been sent and read. An error of either ends it."""
    found = Traffic()

    async def produce() -> None:
        async with client.producer() as producer:
            while found.sent < RECORDS:
                await producer.send(topic, b"%d" % found.sent, key=b"%d" % (found.sent % KEYS))
                found.sent += 1
                await asyncio.sleep(EVERY_S)

    async def consume() -> None:
        async with client.consumer(topic, group="g", start="earliest") as consumer:
            while len(found.seen) < RECORDS:
                value = (await anext(consumer)).value
                assert value is not None
                found.seen.append(int(value))

    async with asyncio.timeout(DONE_S_MAX), asyncio.TaskGroup() as group:
        group.create_task(produce())
        group.create_task(consume())
        yield found
    assert sorted(found.seen) == list(range(RECORDS)), "each once"

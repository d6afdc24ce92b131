"""Programs that SIGTERM stops: `python -m tests.e2e.terminated_program KIND TARGET TOPIC`.

Each prints a line when it has handled ten messages, and one when it ends by itself.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

import ledgermq
import ledgermq.sync

COUNT = 10
_handled: list[None] = []


def handled() -> None:
    _handled.append(None)
    if len(_handled) == COUNT:
        print("handled", flush=True)


async def handler(target: str, topic: str) -> None:
    async with ledgermq.connect(target) as client:

        @client.handler(topic, group=topic, commit_interval_ms=60_000)
        async def handle(message: ledgermq.GroupMessage) -> None:
            handled()

        await client.run_handlers()


async def transactional(target: str, topic: str) -> None:
    async with ledgermq.connect(target) as client:

        @client.handler(topic, group=topic, transactional=True, transactional_id="terminated")
        async def handle(message: ledgermq.GroupMessage) -> ledgermq.Outgoing:
            handled()
            return ledgermq.Outgoing("copies", message.value)

        await client.run_handlers()


async def queue(target: str, topic: str) -> None:
    async with ledgermq.connect(target) as client:

        @client.queue_handler(topic, group=topic)
        async def handle(message: ledgermq.QueueMessage) -> None:
            handled()

        await client.run_handlers()


async def two(target: str, topic: str) -> None:
    """Two clients run handlers at a time; the second one's handlers read nothing."""
    async with ledgermq.connect(target) as client:
        await asyncio.gather(
            handler(target, topic), client.run_handlers(client.handler("copies", group="c")(lambda message: None))
        )


async def stubborn(target: str, topic: str) -> None:
    """A handler that does not end: only a second signal ends the program soon."""
    async with ledgermq.connect(target) as client:

        @client.handler(topic, group=topic, commit_interval_ms=60_000)
        async def handle(message: ledgermq.GroupMessage) -> None:
            handled()
            if len(_handled) == COUNT:
                await asyncio.sleep(3600)

        await client.run_handlers(drain_timeout_s=600)


async def off(target: str, topic: str) -> None:
    async with ledgermq.connect(target) as client:

        @client.handler(topic, group=topic, commit_interval_ms=60_000)
        async def handle(message: ledgermq.GroupMessage) -> None:
            handled()

        await client.run_handlers(stop_on_sigterm=False)


def sync(target: str, topic: str) -> None:
    with ledgermq.sync.connect(target) as client:

        @client.handler(topic, group=topic, commit_interval_ms=60_000)
        def handle(message: ledgermq.GroupMessage) -> None:
            handled()

        client.run_handlers()


def uvloop(target: str, topic: str) -> None:
    import uvloop

    uvloop.run(handler(target, topic))


KINDS: dict[str, Callable[[str, str], object]] = {
    program.__name__: program for program in (handler, transactional, queue, two, stubborn, off, sync, uvloop)
}

if __name__ == "__main__":
    kind, target, topic = sys.argv[1:]
    running = KINDS[kind](target, topic)
    if asyncio.iscoroutine(running):
        asyncio.run(running)
    print("ended", time.monotonic(), flush=True)

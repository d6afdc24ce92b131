"""The objects of a client that live long, each with a way of using it once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

import ledgermq
from ledgermq.client.transactions.checks import Resolution
from ledgermq.errors import LedgerMQError, NoReply
from ledgermq.runtime.tasks import end
from tests.broker.cluster import Cluster


@dataclass
class World:
    cluster: Cluster
    client: ledgermq.Client
    stack: AsyncExitStack
    seen: set[bytes] = field(default_factory=set)

    async def background(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run it until the test ends. It may not end by itself."""

        async def run() -> None:
            await work()

        task = asyncio.create_task(run())

        async def stop() -> None:
            assert not task.done() or task.cancelled() or task.exception() is None, task.exception()
            await end(task)

        self.stack.push_async_callback(stop)


Works = Callable[[bytes], Awaitable[bool]]
"""Use the object once; return whether this value, which is in topic "t" since the cluster is back, came through it."""
Object = Callable[[World], Awaitable[Works]]


async def producer(world: World) -> Works:
    made = await world.stack.enter_async_context(world.client.producer())

    async def works(value: bytes) -> bool:
        await made.send("out", value)
        return True

    return works


async def exclusive_producer(world: World) -> Works:
    made = await world.stack.enter_async_context(world.client.producer(access_mode="exclusive", name="one"))

    async def works(value: bytes) -> bool:
        await made.send("out", value)
        return True

    return works


async def consumer(world: World) -> Works:
    made = await world.stack.enter_async_context(world.client.consumer("t", start="earliest"))

    async def works(value: bytes) -> bool:
        return value in [message.value for message in await made.fetch()]

    return works


async def group_consumer(world: World) -> Works:
    made = await world.stack.enter_async_context(world.client.consumer("t", group="g"))

    async def works(value: bytes) -> bool:
        return value in [message.value for message in await made.fetch()]

    return works


async def queue(world: World) -> Works:
    made = await world.stack.enter_async_context(world.client.queue("t", group="q"))

    async def works(value: bytes) -> bool:
        messages = await made.fetch(timeout=1)
        return value in [message.value for message in messages] and all([await message.ack() for message in messages])

    return works


async def iterated_queue(world: World) -> Works:
    made = await world.stack.enter_async_context(world.client.queue("t", group="q"))

    async def works(value: bytes) -> bool:
        async with asyncio.timeout(60):
            async for message in made:
                if await message.ack() and message.value == value:
                    return True
        return False

    async def in_time(value: bytes) -> bool:
        with suppress(TimeoutError):
            return await works(value)
        return False

    return in_time


async def handler(world: World, **settings: object) -> Works:
    @world.client.handler("t", group="g", **settings)
    async def handle(message: ledgermq.GroupMessage) -> None:
        world.seen.add(message.value or b"")

    await world.background(lambda: world.client.run_handlers(handle))
    return world_has_seen(world)


async def retrying_handler(world: World) -> Works:
    return await handler(world, retry=ledgermq.Retry.levels(reorders=True))


async def transactional_handler(world: World) -> Works:
    @world.client.handler("t", group="g", transactional=True, instance_id="a")
    async def handle(message: ledgermq.GroupMessage) -> object:
        world.seen.add(message.value or b"")
        return ledgermq.Outgoing("out", message.value)

    await world.background(lambda: world.client.run_handlers(handle))
    return world_has_seen(world)


async def queue_handler(world: World) -> Works:
    @world.client.queue_handler("t", group="q")
    async def handle(message: ledgermq.QueueMessage) -> None:
        world.seen.add(message.value or b"")

    await world.background(lambda: world.client.run_handlers(handle))
    return world_has_seen(world)


def world_has_seen(world: World) -> Works:
    async def works(value: bytes) -> bool:
        await asyncio.sleep(1)
        return value in world.seen

    return works


async def table(world: World) -> Works:
    made = await world.stack.enter_async_context(world.client.table("keyed"))

    async def works(value: bytes) -> bool:
        await asyncio.sleep(1)
        return value in list(made.values())

    return works


async def transactions(world: World) -> Works:
    made = await world.stack.enter_async_context(world.client.transactions("pay"))

    async def works(value: bytes) -> bool:
        async with made.begin() as transaction:
            transaction.send("out", value)
        return True

    return works


async def half_messages(world: World) -> Works:
    async def check(message: ledgermq.CheckedMessage) -> Resolution:
        world.seen.add(message.value or b"")
        return "commit"

    made = world.client.half_messages("checkers", check=check)
    await world.stack.enter_async_context(made)

    async def works(value: bytes) -> bool:
        half = await made.send("out", value)
        await half.commit()
        return True

    return works


async def checker_of_half_messages(world: World) -> Works:
    """Its checks come from brokers; the message is sent by another program that dies at once."""
    await half_messages(world)
    sent: set[bytes] = set()

    async def checked(value: bytes) -> bool:
        if value not in sent:
            async with world.cluster.client() as other, other.half_messages("checkers", check=_unknown) as halves:
                await halves.send("out", value)
                sent.add(value)
        await asyncio.sleep(5)
        return value in world.seen

    return checked


async def _unknown(message: ledgermq.CheckedMessage) -> Resolution:
    return "unknown"


async def requests(world: World) -> Works:
    async def reply() -> None:
        async with world.client.consumer("requests", start="earliest") as asked:
            while True:
                with suppress(LedgerMQError):
                    async for message in asked:
                        await message.reply(message.value)

    await world.background(reply)

    async def works(value: bytes) -> bool:
        with suppress(NoReply):
            return (await world.client.request("requests", value, timeout=10)).value is not None
        return False

    return works


OBJECTS: list[Object] = [
    producer,
    exclusive_producer,
    consumer,
    group_consumer,
    queue,
    iterated_queue,
    handler,
    retrying_handler,
    transactional_handler,
    queue_handler,
    table,
    transactions,
    half_messages,
    checker_of_half_messages,
    requests,
]

"""The tasks of `ledgermq conformance` by our own SDK."""

from __future__ import annotations

import asyncio
import sys

import ledgermq


async def produce(address: str, topic: str, partition: str, first: str, count: str) -> None:
    async with ledgermq.connect(address) as client, client.producer() as producer:
        for number in range(int(first), int(first) + int(count)):
            producer.send(topic, str(number), partition=int(partition))


async def fetch(address: str, topic: str, partition: str, offset: str, count: str) -> None:
    async with (
        ledgermq.connect(address) as client,
        client.consumer(topic, [int(partition)], {int(partition): int(offset)}) as consumer,
    ):
        left = int(count)
        while left:
            for message in await consumer.fetch(left):
                print(message.offset, message.value.decode(), flush=True)
                left -= 1


async def member(address: str, topic: str, group: str) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    async with (
        ledgermq.connect(address) as client,
        client.consumer(topic, group=group) as consumer,
    ):
        while not ended.done():
            for message in await consumer.fetch(timeout=0.2):
                print(message.partition, message.offset, message.value.decode(), flush=True)
        await consumer.drain()  # closing commits no message of the last call, which it cannot know to be handled


TASKS = {"produce": produce, "fetch": fetch, "member": member}

if __name__ == "__main__":
    asyncio.run(TASKS[sys.argv[1]](*sys.argv[2:]))

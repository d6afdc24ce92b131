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


async def queue(address: str, topic: str, group: str) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    async with ledgermq.connect(address) as client, client.queue(topic, group=group) as member:
        while not ended.done():
            for message in await member.fetch(timeout=0.2):
                print(message.partition, message.offset, message.value.decode(), flush=True)
                message.ack()
        await member.flush()


async def transaction(
    address: str, name: str, outcome: str, topic: str, first: str, count: str, *partitions: str
) -> None:
    async with (
        ledgermq.connect(address) as client,
        client.transactions(name) as transactions,
        transactions.begin() as begun,
    ):
        for row in range(int(count)):
            begun.send(topic, str(int(first) + row), partition=int(partitions[row % len(partitions)]))
        await (begun.commit() if outcome == "commit" else begun.abort())


TASKS = {"produce": produce, "fetch": fetch, "member": member, "queue": queue, "transaction": transaction}

if __name__ == "__main__":
    asyncio.run(TASKS[sys.argv[1]](*sys.argv[2:]))

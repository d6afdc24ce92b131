"""Many connected clients in one process: `python -m bench.crowd TARGET TOPIC --clients 250`.

Each has its own connection, has produced one record, and reads at the end of the topic. Says
"connected" once all are, and stays until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack

import ledgermq

AT_ONCE = 20
"""Clients that connect at the same time."""


async def connect(stack: AsyncExitStack, target: str, topic: str, partition: int) -> None:
    client = await stack.enter_async_context(ledgermq.connect(target))
    async with client.producer() as producer:
        await producer.send(topic, b"here", partition=partition)
    consumer = await stack.enter_async_context(client.consumer(topic, partitions=[partition], start="latest"))
    await consumer.wait_ready()


async def stay(target: str, topic: str, clients: int, partitions: int) -> None:
    room = asyncio.Semaphore(AT_ONCE)
    async with AsyncExitStack() as stack:

        async def one(number: int) -> None:
            async with room:
                await connect(stack, target, topic, number % partitions)

        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(one(number))
        print("connected", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("topic")
    parser.add_argument("--clients", type=int, default=250)
    parser.add_argument("--partitions", type=int, default=8)
    options = parser.parse_args()
    asyncio.run(stay(options.target, options.topic, options.clients, options.partitions))


if __name__ == "__main__":
    main()

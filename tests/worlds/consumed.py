"""Read a whole topic with a consumer of a client."""

from __future__ import annotations

import asyncio
from typing import Any

import ledgermq

READ_S_MAX = 180.0


async def read_messages(
    client: ledgermq.Client, topics: str | list[str] = "t", **settings: Any
) -> list[ledgermq.Message]:
    """Return what a new consumer gets up to the ends as they are now."""
    async with client.consumer(topics, **settings) as consumer:
        return await _read_to_ends(consumer)


async def read_values(client: ledgermq.Client, topic: str = "t") -> dict[int, list[bytes | None]]:
    """Return the values of each partition; assert that offsets begin at 0 and are dense."""
    async with client.consumer(topic) as consumer:
        values: dict[int, list[bytes | None]] = {at.partition: [] for at in await consumer.end_offsets()}
        for message in await _read_to_ends(consumer):
            assert message.offset == len(values[message.partition]), "offsets are dense"
            values[message.partition].append(message.value)
    return values


async def _read_to_ends(consumer: ledgermq.Consumer) -> list[ledgermq.Message]:
    """Records that come meanwhile may be among them."""
    messages: list[ledgermq.Message] = []
    async with asyncio.timeout(READ_S_MAX):
        ends = await consumer.end_offsets()
        while any(consumer.positions().get(partition, -1) < end for partition, end in ends.items()):
            messages += await consumer.fetch(1000, timeout=30)
    return messages

"""Messages that expire: sent, and read."""

from __future__ import annotations

from datetime import timedelta

import ledgermq


async def send(
    client: ledgermq.Client, topic: str, *ttls: float | timedelta | None, first: int = 0, age_s: float = 0
) -> None:
    """Records with their number as value, each with its time to live."""
    moment = client._context.connections.now() - timedelta(seconds=age_s)
    async with client.producer() as producer:
        for number, ttl in enumerate(ttls, first):
            producer.send(topic, f"{number}", partition=0, ttl=ttl, timestamp=moment)
        await producer.flush()


def values(messages: list[ledgermq.Message]) -> list[int]:
    return [int(message.value or b"") for message in messages]


async def read(client: ledgermq.Client, topic: str, **settings: bool | str) -> list[int]:
    """What a consumer of the whole topic gets."""
    async with client.consumer(topic, until_end=True, **settings) as consumer:
        return values([message async for message in consumer])

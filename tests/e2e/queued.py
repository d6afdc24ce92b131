"""Messages of a queue: sent, and their values."""

from __future__ import annotations

import ledgermq


async def fill(client: ledgermq.Client, count: int, topic: str = "jobs", partitions: int = 1) -> None:
    await client.create_topic(topic, partitions, if_not_exists=True)
    async with client.producer() as producer:
        await producer.send_many(topic, [b"%d" % number for number in range(count)])


def values(messages: list[ledgermq.QueueMessage]) -> list[int]:
    return [int(message.value or b"") for message in messages]

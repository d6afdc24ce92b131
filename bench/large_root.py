"""Fill a cluster with 1,000 topics of 10 partitions each, a record in each partition, and 500 groups.

    python -m bench.large_root localhost:9650

Each group has committed the first offset of every partition of two topics, so that all of them are behind: the groups
have 10,000 committed offsets. One more topic, `orders`, has 1,000 records in one partition.
"""

from __future__ import annotations

import asyncio
import json
import sys

import ledgermq
from ledgermq.client.client import Client
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.runtime.tasks import all_of

TOPICS, PARTITIONS, GROUPS = 1_000, 10, 500
AT_ONCE = 50
BUSY_TOPIC, BUSY_RECORDS = "orders", 1_000
TIMEOUT_S = 120.0


def topic_names(topics: int = TOPICS) -> list[str]:
    """Return the names of the topics, without the one that has many records."""
    return [f"shop-{number:04}.events" for number in range(topics)]


async def fill(client: Client, topics: int = TOPICS, groups: int = GROUPS) -> None:
    """Fill the cluster. Raises the client's errors."""
    names = topic_names(topics)
    await all_of((client.create_topic(name, PARTITIONS, if_not_exists=True) for name in names), AT_ONCE)
    await client.create_topic(BUSY_TOPIC, 1, if_not_exists=True)
    async with client.producer() as producer:
        for name in names:
            for partition in range(PARTITIONS):
                producer.send(name, b"one", partition=partition)
        for number in range(BUSY_RECORDS):
            producer.send(BUSY_TOPIC, json.dumps({"order": number, "country": "eu"}), key=f"table-{number % 9}")
        await producer.flush()
    ids = {each.name: each.topic_id for each in await client.list_topics()}
    offsets = (_behind(names, ids, number) for number in range(groups))
    committed = (client.groups.commit(f"reader-{number:03}", behind) for number, behind in enumerate(offsets))
    refused = [error for errors in await all_of(committed, AT_ONCE) for error in errors.values()]
    if refused:
        raise refused[0]


def _behind(names: list[str], ids: dict[str, int], number: int) -> dict[TopicPartition, tuple[int, int]]:
    """Return what a group commits: the topic's id, and the first offset, by partition of its two topics."""
    read = [names[at % len(names)] for at in (2 * number, 2 * number + 1)]
    return {TopicPartition(name, at): (ids[name], 0) for name in read for at in range(PARTITIONS)}


async def main(target: str) -> None:
    async with ledgermq.connect(target, timeout_s=TIMEOUT_S) as client:
        await fill(client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

"""What the source asks of brokers, where it was told some: the root of their cluster, and to show a
query's progress as a group's.

Records are never read from brokers. Progress is for people to look at, the checkpoint alone decides
what is read: a refusal, or an answer that does not come, is logged, and the query goes on.
"""

from __future__ import annotations

import asyncio
import logging

import ledgermq
from ledgermq import TopicPartition
from ledgermq.errors import LedgerMQError
from spark.options import check_servers
from spark.source.positions import Position

PUBLISH_EVERY_S = 1.0
LAST_S = 5.0
"""So long the end of a query waits for its last progress to be taken."""
log = logging.getLogger("ledgermq.spark")


async def root_of(servers: str) -> str:
    """The root URL of the cluster of these brokers. Raises InvalidConfig, Unavailable."""
    check_servers(servers)
    async with ledgermq.connect(servers) as client:
        return (await client.describe_cluster()).root


class Progress:
    """Tells brokers how far a query is, the newest position only, about once a second.

    Within one event loop; `close` tells the last.
    """

    def __init__(self, servers: str, group: str) -> None:
        check_servers(servers)
        self._servers = servers
        self._group = group
        self._newest: Position | None = None
        self._told: Position | None = None
        self._news = asyncio.Event()
        self._warned = ""
        self._running = asyncio.create_task(self._run())

    def reached(self, position: Position) -> None:
        """Everything before it has gone through the query."""
        if self._newest is None or position.topics != self._newest.topics:
            self._newest = position
            self._news.set()

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        async with ledgermq.connect(self._servers) as client:
            try:
                while True:
                    await self._news.wait()
                    self._news.clear()
                    await self._tell(client)
                    await asyncio.sleep(PUBLISH_EVERY_S)
            finally:
                async with asyncio.timeout(LAST_S):
                    await self._tell(client)

    async def _tell(self, client: ledgermq.Client) -> None:
        position = self._newest
        if position is None or position == self._told:
            return
        try:
            refused = await client.groups.commit(self._group, offsets_of(position))
        except LedgerMQError as error:
            self._warn(error.message)
            self._news.set()  # after the pause once more, though the query may stand still
            return
        if any(why.retriable for why in refused.values()):
            self._news.set()  # all of it: what was taken does no harm again
        else:
            self._told = position
        if refused:
            self._warn(
                "; ".join(f"{topic}/{partition}: {why.message}" for (topic, partition), why in sorted(refused.items()))
            )

    def _warn(self, text: str) -> None:
        if text != self._warned:
            log.warning("group %s does not get the progress of the query: %s", self._group, text)
            self._warned = text


def offsets_of(position: Position) -> dict[TopicPartition, tuple[int, int]]:
    """(topic id, offset) of each partition."""
    found: dict[TopicPartition, tuple[int, int]] = {}
    for name, topic in position.topics.items():
        found |= {TopicPartition(name, partition): (topic.id, offset) for partition, offset in topic.offsets.items()}
    return found

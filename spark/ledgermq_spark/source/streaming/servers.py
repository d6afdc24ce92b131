"""Use brokers if the options name some: read the root of their cluster, and show a query's progress
as that of a group.

Records are never read from brokers. Progress is only for people; the checkpoint alone decides what
is read. A refused or unanswered commit is logged, and the query continues.
"""

from __future__ import annotations

import asyncio
import logging

import ledgermq
from ledgermq import TopicPartition
from ledgermq.errors import LedgerMQError
from ledgermq_spark.options import Connection, check_servers
from ledgermq_spark.source.streaming.positions import Position

PUBLISH_EVERY_S = 1.0
LAST_S = 5.0
"""The end of a query waits this long for the commit of its last progress."""
log = logging.getLogger("ledgermq.spark")


async def root_of(servers: str, connection: Connection) -> str:
    """Return the root URL of the cluster of these brokers. Raises InvalidConfig, Unavailable."""
    check_servers(servers)
    async with ledgermq.connect(servers, **connection.settings()) as client:
        return (await client.describe_cluster()).root


class Progress:
    """Commit a query's newest position to brokers, about once a second.

    Use it within one event loop; `close` commits the last position.
    """

    def __init__(self, servers: str, group: str, connection: Connection | None = None) -> None:
        check_servers(servers)
        self._connection = connection or Connection()
        self._servers = servers
        self._group = group
        self._newest: Position | None = None
        self._committed: Position | None = None
        self._news = asyncio.Event()
        self._warned = ""
        self._running = asyncio.create_task(self._run())

    def reached(self, position: Position) -> None:
        """Note that everything before the position has gone through the query."""
        if self._newest is None or position.topics != self._newest.topics:
            self._newest = position
            self._news.set()

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        async with ledgermq.connect(self._servers, **self._connection.settings()) as client:
            try:
                while True:
                    await self._news.wait()
                    self._news.clear()
                    await self._commit(client)
                    await asyncio.sleep(PUBLISH_EVERY_S)
            finally:
                async with asyncio.timeout(LAST_S):
                    await self._commit(client)

    async def _commit(self, client: ledgermq.Client) -> None:
        position = self._newest
        if position is None or position == self._committed:
            return
        try:
            refused = await client.groups.commit(self._group, offsets_of(position))
        except LedgerMQError as error:
            self._warn(error.message)
            self._news.set()  # after the pause try again, even if the query does not move
            return
        if any(why.retriable for why in refused.values()):
            self._news.set()  # all of it: committing the same offsets again does no harm
        else:
            self._committed = position
        if refused:
            self._warn(
                "; ".join(f"{topic}/{partition}: {why.message}" for (topic, partition), why in sorted(refused.items()))
            )

    def _warn(self, text: str) -> None:
        if text != self._warned:
            log.warning("group %s does not get the progress of the query: %s", self._group, text)
            self._warned = text


def offsets_of(position: Position) -> dict[TopicPartition, tuple[int, int]]:
    """Return (topic id, offset) of each partition."""
    found: dict[TopicPartition, tuple[int, int]] = {}
    for name, topic in position.topics.items():
        found |= {TopicPartition(name, partition): (topic.id, offset) for partition, offset in topic.offsets.items()}
    return found

"""At most once: messages are committed before they are handed out. What is committed and then lost
with the program never comes again.

Invariants: nothing is handed out whose commit was not answered; a commit that was refused or not
answered hands out nothing, and its messages stay where they were.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ledgermq.client.consuming.reader import Reader
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.committer import Wish
from ledgermq.client.groups.committing import Commits
from ledgermq.client.groups.holding import Holding
from ledgermq.client.groups.message import GroupMessage
from ledgermq.errors import CommitGoesBack, GroupError, LedgerMQError

ITERATED_RECORDS = 500
"""An iteration commits so many at once."""
_LOOK_S = 60.0


class CommitFirst:
    def __init__(self, commits: Commits, reader: Reader[GroupMessage]) -> None:
        self._commits = commits
        self._reader = reader
        self.committed: deque[GroupMessage] = deque()
        """Not handed out yet."""

    async def next(self) -> GroupMessage:
        while not self.committed:
            self.committed.extend(await self._fetch(ITERATED_RECORDS, asyncio.get_running_loop().time() + _LOOK_S))
        return self.committed.popleft()

    async def fetch(self, max_records: int, deadline: float) -> list[GroupMessage]:
        if self.committed:
            return [self.committed.popleft() for _ in range(min(max_records, len(self.committed)))]
        return await self._fetch(max_records, deadline)

    def forget(self, partition: TopicPartition) -> None:
        """The program went elsewhere in this partition."""
        self.committed = deque(message for message in self.committed if (message.topic, message.partition) != partition)

    async def _fetch(self, max_records: int, deadline: float) -> list[GroupMessage]:
        while True:
            messages = await self._reader.fetch(max_records, deadline)
            if not messages:
                return []
            holdings = self._commits.holdings_of(messages)
            before = {
                holding: next(m.offset for m in messages if (m.topic, m.partition) == holding.partition)
                for holding in holdings
            }
            try:
                refused = await self._commits.send({holding: Wish(holding.progress.handed) for holding in holdings})
            except BaseException:
                self._take_back(before)
                raise
            lost = self._judge(refused, before)
            kept = [message for message in messages if (message.topic, message.partition) not in lost]
            if kept:
                for holding in holdings:
                    holding.progress.finish_through(holding.progress.handed)
                return kept

    def _judge(self, refused: dict[TopicPartition, LedgerMQError], before: dict[Holding, int]) -> set[TopicPartition]:
        """The partitions that are not this member's any more.

        A commit that goes back is one that was stored by an earlier attempt.
        """
        lost = {partition for partition, error in refused.items() if isinstance(error, GroupError)}
        others = [
            error
            for partition, error in refused.items()
            if partition not in lost and not isinstance(error, CommitGoesBack)
        ]
        if others:
            self._take_back(before)
            raise others[0]
        return lost

    def _take_back(self, before: dict[Holding, int]) -> None:
        for holding, offset in before.items():
            if holding.reading is not None and not holding.gone and not holding.letting_go:
                holding.progress.move(offset)
                self._reader.seek([(holding.reading, offset)])

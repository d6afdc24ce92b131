"""Commit messages before they are returned: no message is returned before its commit was answered."""

from __future__ import annotations

import asyncio
from collections import deque

from ledgermq.client.consuming.message import partition_of
from ledgermq.client.consuming.reader import Reader
from ledgermq.client.groups.committing.commits import Commits
from ledgermq.client.groups.committing.committer import Wish
from ledgermq.client.groups.holding.holding import Holding
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import (
    CommitGoesBack,
    GroupError,
    LedgerMQError,
)

ITERATED_RECORDS = 500
"""Number of messages that an iteration commits at once."""
_LOOK_S = 60.0


class CommitFirst:
    """Commits messages before they are returned: at most once.

    A message that was committed and is then lost with the program is never delivered again. If a
    commit is refused or not answered, no message is returned, and the positions stay unchanged.
    """

    def __init__(self, commits: Commits, reader: Reader[GroupMessage]) -> None:
        self._commits = commits
        self._reader = reader
        self.committed: deque[GroupMessage] = deque()
        """Messages that are committed but not yet returned."""

    async def next(self) -> GroupMessage:
        while not self.committed:
            self.committed.extend(await self._fetch(ITERATED_RECORDS, asyncio.get_running_loop().time() + _LOOK_S))
        return self.committed.popleft()

    async def fetch(self, max_records: int, deadline: float) -> list[GroupMessage]:
        if self.committed:
            return [self.committed.popleft() for _ in range(min(max_records, len(self.committed)))]
        return await self._fetch(max_records, deadline)

    def forget(self, partition: TopicPartition) -> None:
        """Drop the committed messages of a partition in which the program seeks."""
        self.committed = deque(message for message in self.committed if partition_of(message) != partition)

    async def _fetch(self, max_records: int, deadline: float) -> list[GroupMessage]:
        while True:
            messages = await self._reader.fetch(max_records, deadline)
            if not messages:
                if asyncio.get_running_loop().time() >= deadline:
                    return []
                continue
            holdings = self._commits.holdings_of(messages)
            before = {
                holding: next(m.offset for m in messages if partition_of(m) == holding.partition)
                for holding in holdings
            }
            try:
                refused = await self._commits.send({holding: Wish(holding.progress.handed) for holding in holdings})
            except BaseException:
                self._take_back(before)
                raise
            lost = self._judge(refused, before)
            kept = [message for message in messages if partition_of(message) not in lost]
            if kept:
                for holding in holdings:
                    holding.progress.finish_through(holding.progress.handed)
                return kept

    def _judge(self, refused: dict[TopicPartition, LedgerMQError], before: dict[Holding, int]) -> set[TopicPartition]:
        """Return the partitions that this member has lost. Raises any other refusal.

        A commit that goes back is not an error here: an earlier attempt has stored it.
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
            if holding.reading is not None and holding.kept:
                holding.progress.move(offset)
                self._reader.seek([(holding.reading, offset)])

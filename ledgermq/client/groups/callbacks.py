"""The program's own functions that are told of partitions: one at a time, each bounded; what one
raises is kept for the next call.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable

from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.settings import GroupSettings, PartitionsCallback
from ledgermq.errors import LedgerMQError


class Callbacks:
    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._one_at_a_time = asyncio.Lock()
        self._failure: LedgerMQError | None = None

    def take_failure(self) -> LedgerMQError | None:
        """What a callback raised since the last look."""
        failure, self._failure = self._failure, None
        return failure

    async def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        await self._call("on_assigned", self._settings.on_assigned, partitions)

    async def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        await self._call("on_revoked", self._settings.on_revoked, partitions)

    async def lost(self, partitions: Iterable[TopicPartition]) -> None:
        await self._call("on_lost", self._settings.on_lost, partitions)

    async def _call(self, name: str, function: PartitionsCallback | None, partitions: Iterable[TopicPartition]) -> None:
        async with self._one_at_a_time:
            named = sorted(partitions)  # only now: they may have changed while another call was running
            if function is None or not named:
                return
            try:
                async with asyncio.timeout(self._settings.max_poll_interval_s):
                    outcome = function(named)
                    if inspect.isawaitable(outcome):
                        await outcome
            except Exception as error:
                self._failure = LedgerMQError(f"{name} failed: {error!r}")
                self._failure.__cause__ = error

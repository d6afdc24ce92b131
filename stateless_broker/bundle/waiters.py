"""Long polls and streams that wait for durable data: one future for each call, whatever the number
of its partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from ledger.keys import PartitionId


class Waiters:
    """`end_of`: the high watermark of a partition."""

    def __init__(self, end_of: Callable[[int, int], int]) -> None:
        self._end_of = end_of
        self._waiting: dict[PartitionId, dict[asyncio.Future[None], None]] = {}  # woken in order of arrival
        self._closed = False

    async def wait(self, positions: Mapping[PartitionId, int]) -> None:
        """Returns when a partition has data at or above its offset, or `close` was called; at once
        where that is so already.
        """
        while not self._closed and not any(self._end_of(*key) > offset for key, offset in positions.items()):
            await self._grown(positions)

    async def _grown(self, positions: Iterable[PartitionId]) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for key in positions:
            self._waiting.setdefault(key, {})[woken] = None
        try:
            await woken
        finally:
            for key in positions:
                self._forget(key, woken)

    def wake(self, keys: Iterable[PartitionId]) -> None:
        """These partitions have grown."""
        for key in keys:
            for future in self._waiting.get(key, ()):
                if not future.done():
                    future.set_result(None)

    def close(self) -> None:
        self._closed = True
        self.wake(list(self._waiting))

    def _forget(self, key: PartitionId, woken: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.pop(woken, None)
            if not waiting:
                del self._waiting[key]

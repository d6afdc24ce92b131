"""A store that answers as late as one at a distance, in the time of whatever loop it is asked in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import TypeVar

from bench.distant import Distance
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper

T = TypeVar("T")


class DistantStore(StoreWrapper):
    def __init__(self, inner: ObjectStore, random: Random, distance: Distance) -> None:
        super().__init__(inner)
        self._random = random
        self._distance = distance

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self._distance.late(operation).draw_s(self._random))
        return await step()

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await asyncio.sleep(self._distance.write.draw_s(self._random))
        async for info in self.inner.list(prefix, start_after):
            yield info

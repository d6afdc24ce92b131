"""A store that counts what it is asked, by operation and folder."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper


class Requests(StoreWrapper):
    """Counts requests by (operation, folder)."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.made: Counter[tuple[str, str]] = Counter()

    def _count(self, operation: str, key: str) -> None:
        parts = key.split("/")
        self.made[operation, parts[2] if len(parts) > 2 and parts[0] == "ledgers" else parts[0]] += 1

    async def get_suffix(self, key: str, length: int) -> bytes:
        self._count("get_suffix", key)
        return await super().get_suffix(key, length)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self._count("get_range", key)
        return await super().get_range(key, start, length)

    async def get(self, key: str) -> bytes:
        self._count("get", key)
        return await super().get(key)

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        self._count("list", prefix)
        return super().list(prefix, start_after)

    async def delete(self, keys: Sequence[str]) -> None:
        self.made["deleted", "keys"] += len(keys)
        await super().delete(keys)


class LateLists(Requests):
    """Each LIST takes `late_s`, so that whatever goes on at the same time comes in between."""

    def __init__(self, inner: ObjectStore, late_s: float) -> None:
        super().__init__(inner)
        self.late_s = late_s

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await asyncio.sleep(self.late_s)
        async for info in super().list(prefix, start_after):
            yield info

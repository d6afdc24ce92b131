"""A store that counts what is read from it."""

from __future__ import annotations

from collections import Counter

from ledger import keys
from ledger.object_store.contract import ObjectStore
from ledger.object_store.wrapper import StoreWrapper


class CountingStore(StoreWrapper):
    """Reads of everything but heartbeats, by operation, and their bytes."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.reads: Counter[str] = Counter()
        self.bytes = 0

    async def get(self, key: str) -> bytes:
        return self._count("get", key, await super().get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._count("get_range", key, await super().get_range(key, start, length))

    async def get_suffix(self, key: str, length: int) -> bytes:
        return self._count("get_suffix", key, await super().get_suffix(key, length))

    def _count(self, operation: str, key: str, data: bytes) -> bytes:
        if not key.startswith(keys.BROKERS):
            self.reads[operation] += 1
            self.bytes += len(data)
        return data

    def forget(self) -> None:
        self.reads.clear()
        self.bytes = 0

"""Stores without room: `FullStore` takes some Parquet files and all that is small, `RefusingStore`
takes nothing for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ledgermq.errors import LedgerMQError, StoreFull
from ledgermq_ledger.object_store.contract import Buffer, FencedPuts, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from tests.stores.one_put import OnePut
from tests.virtual_time import virtual_sources


class FullStore(StoreWrapper):
    """Room for so many Parquet files; what is small may be put, as where a reserve is kept."""

    def __init__(self, inner: ObjectStore, files: int = 0) -> None:
        super().__init__(inner)
        self.files = files
        self.one_at_a_time = asyncio.Lock()
        """Else the refusal of one put cancels another."""

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        return _Puts(self, await self.inner.fenced_puts(fence, keys, url_life_ms))


class _Puts(FencedPuts):
    def __init__(self, store: FullStore, inner: FencedPuts) -> None:
        self._store = store
        self._inner = inner

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        async with self._store.one_at_a_time:
            self._store.files -= 1
            if self._store.files < 0:
                raise StoreFull("no space is left", object_key=key)
            await self._inner.put_if_absent(key, buffers)


class RefusingStore(OnePut):
    """Takes nothing while there is a `refusal`."""

    def __init__(self) -> None:
        super().__init__(MemoryStore("", virtual_sources()))
        self.refusal: LedgerMQError | None = None

    async def put(self, key: str, data: Buffer) -> None:
        if self.refusal is not None:
            raise self.refusal
        await super().put(key, data)

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if self.refusal is not None:
            raise self.refusal
        await super().put_if_absent(key, buffers)

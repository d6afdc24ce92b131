"""`UrlStore`: a store whose fences are those of S3: nothing closes them, permissions only expire."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import Buffer, FenceClosed, FencedPuts, ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper


class UrlStore(StoreWrapper):
    """As S3: nothing closes a fence; a permission lasts `url_life_ms`, and an upload that began in
    time may take as long again.
    """

    def __init__(self, inner: ObjectStore, sources: Sources) -> None:
        super().__init__(inner)
        self.fences_close_at_once = False
        self.sources = sources

    async def open_fence(self, fence: str) -> None:
        pass

    async def close_fence(self, fence: str) -> None:
        pass

    async def list_fences(self) -> Sequence[str]:
        return []

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        return _UrlPuts(self, self.sources.now_ms() + url_life_ms, url_life_ms / 1000)


class _UrlPuts(FencedPuts):
    def __init__(self, store: UrlStore, expires_ms: int, upload_s_max: float) -> None:
        self._store = store
        self._expires_ms = expires_ms
        self._upload_s_max = upload_s_max

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if self._store.sources.now_ms() > self._expires_ms:
            raise FenceClosed(f"{key}: expired")
        await asyncio.sleep(self._store.sources.random.uniform(0, self._upload_s_max))
        await self._store.inner.put_if_absent(key, buffers)

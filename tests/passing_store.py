"""`PassingStore` hands every call to another store; tests override the one that they want to go
wrong.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ledger.object_store.contract import Buffer, FencedPuts, ObjectInfo, ObjectStore


class PassingStore(ObjectStore):
    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.url = inner.url
        self.fences_close_at_once = inner.fences_close_at_once

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self.inner.put_if_absent(key, buffers)

    async def make_durable(self, keys: Sequence[str]) -> None:
        await self.inner.make_durable(keys)

    async def put(self, key: str, data: Buffer) -> None:
        await self.inner.put(key, data)

    async def get(self, key: str) -> bytes:
        return await self.inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self.inner.get_range(key, start, length)

    async def get_suffix(self, key: str, length: int) -> bytes:
        return await self.inner.get_suffix(key, length)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in self.inner.list(prefix, start_after):
            yield info

    async def delete(self, keys: Sequence[str]) -> None:
        await self.inner.delete(keys)

    async def head(self, key: str) -> ObjectInfo:
        return await self.inner.head(key)

    async def store_time_ms(self) -> int:
        return await self.inner.store_time_ms()

    async def open_fence(self, fence: str) -> None:
        await self.inner.open_fence(fence)

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        return await self.inner.fenced_puts(fence, keys, url_life_ms)

    async def close_fence(self, fence: str) -> None:
        await self.inner.close_fence(fence)

    async def list_fences(self) -> Sequence[str]:
        return await self.inner.list_fences()

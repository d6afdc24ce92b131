"""`StoreWrapper`: wrap a store; every operation but `list` passes through one method, `run`.

It passes everything on unchanged. `resilient` and `metered` override `run` (and `list`, which
yields objects as they come); others override the operations that they change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from ledgermq_ledger.object_store.contract import Buffer, FencedPuts, ObjectInfo, ObjectStore

T = TypeVar("T")

PUTS = frozenset({"put_if_absent", "put", "fenced_put"})


def size_of(buffers: Sequence[Buffer]) -> int:
    """Return the size in bytes, also of views with larger items."""
    return sum(memoryview(buffer).nbytes for buffer in buffers)


class StoreWrapper(ObjectStore):
    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.url = inner.url
        self.fences_close_at_once = inner.fences_close_at_once

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        """Call `step`; a subclass may call it later, more than once, or not at all.

        `what`: the key, or another subject of the operation. `bytes_known`: bytes sent or
        requested; 0 if not known before.
        """
        return await step()

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self.run("put_if_absent", key, size_of(buffers), lambda: self.inner.put_if_absent(key, buffers))

    async def confirm(self, key: str, buffers: Sequence[Buffer]) -> bool:
        return await self.inner.confirm(key, buffers)

    async def put_data(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self.run("put_if_absent", key, size_of(buffers), lambda: self.inner.put_data(key, buffers))

    async def make_durable(self, keys: Sequence[str]) -> None:
        await self.inner.make_durable(keys)

    async def keep_reserve(self, size_bytes: int) -> bool:
        return await self.inner.keep_reserve(size_bytes)

    async def put(self, key: str, data: Buffer) -> None:
        await self.run("put", key, size_of([data]), lambda: self.inner.put(key, data))

    async def get(self, key: str) -> bytes:
        return await self.run("get", key, 0, lambda: self.inner.get(key))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        return await self.run("get_range", key, length, lambda: self.inner.get_range(key, start, length))

    async def get_suffix(self, key: str, length: int) -> bytes:
        return await self.run("get_suffix", key, length, lambda: self.inner.get_suffix(key, length))

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        return self.inner.list(prefix, start_after)

    async def delete(self, keys: Sequence[str]) -> None:
        await self.run("delete", ", ".join(keys), 0, lambda: self.inner.delete(keys))

    async def head(self, key: str) -> ObjectInfo:
        return await self.run("head", key, 0, lambda: self.inner.head(key))

    async def store_time_ms(self) -> int:
        return await self.run("store_time_ms", "clock", 0, self.inner.store_time_ms)

    async def open_fence(self, fence: str) -> None:
        await self.run("open_fence", fence, 0, lambda: self.inner.open_fence(fence))

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        puts = await self.run("fenced_puts", fence, 0, lambda: self.inner.fenced_puts(fence, keys, url_life_ms))
        return _WrappedFencedPuts(self, puts)

    async def put_fenced(self, puts: FencedPuts, key: str, buffers: Sequence[Buffer]) -> None:
        """Put by a permission from `fenced_puts` of the inner store."""
        await self.run("fenced_put", key, size_of(buffers), lambda: puts.put_if_absent(key, buffers))

    async def close_fence(self, fence: str) -> None:
        await self.run("close_fence", fence, 0, lambda: self.inner.close_fence(fence))

    async def list_fences(self) -> Sequence[str]:
        return await self.run("list_fences", "fences", 0, self.inner.list_fences)

    async def share(self, key: str, life_ms: int) -> str | None:
        return await self.inner.share(key, life_ms)

    async def close(self) -> None:
        await self.inner.close()


class _WrappedFencedPuts(FencedPuts):
    def __init__(self, wrapper: StoreWrapper, puts: FencedPuts) -> None:
        self._wrapper = wrapper
        self._puts = puts

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self._wrapper.put_fenced(self._puts, key, buffers)

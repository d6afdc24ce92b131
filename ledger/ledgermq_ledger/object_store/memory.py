"""`MemoryStore`: keep objects in a dict of this process, for tests, the simulator and ``memory://``
clusters of one process.

Invariants: every operation is one step of the event loop, so it is atomic, and two runs with the
same calls give the same answers. Knows no faults and no delays: a wrapper in the tests adds these.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import (
    AlreadyExists,
    Buffer,
    FenceClosed,
    FencedPuts,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    OpenedPuts,
)
from ledgermq_ledger.object_store.names import check_fence, check_key, check_prefix, is_shown

_named: dict[str, MemoryStore] = {}


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    info: ObjectInfo


class MemoryStore(ObjectStore):
    """`sources` provides the store's clock: in a simulation it differs from every broker's."""

    def __init__(self, name: str = "", sources: Sources | None = None) -> None:
        self.url = f"memory://{name}"
        self._sources = sources or Sources()
        self._objects: dict[str, _Stored] = {}
        self._keys: list[str] = []
        self._fences: set[str] = set()
        self._puts = 0

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """Return the one store of this name in this process; it keeps its objects after `close`."""
        if name not in _named:
            _named[name] = cls(name)
        return _named[name]

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        self._create(check_key(key), buffers)

    async def put(self, key: str, data: Buffer) -> None:
        self._replace(check_key(key), bytes(data))

    async def get(self, key: str) -> bytes:
        return self._stored(key).data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        assert start >= 0
        assert length >= 0
        return self._stored(key).data[start : start + length]

    async def get_suffix(self, key: str, length: int) -> bytes:
        assert length >= 0
        data = self._stored(key).data
        return data[max(0, len(data) - length) :]

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        at = start_after
        if prefix > at:
            if prefix in self._objects and is_shown(prefix):
                yield self._objects[prefix].info
            at = prefix
        # Looks up the next key each time: the caller may put and delete between two of them.
        while (i := bisect_right(self._keys, at)) < len(self._keys) and self._keys[i].startswith(prefix):
            at = self._keys[i]
            if is_shown(at):
                yield self._objects[at].info

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._forget(check_key(key))

    async def head(self, key: str) -> ObjectInfo:
        return self._stored(key).info

    async def store_time_ms(self) -> int:
        return self._sources.now_ms()

    async def open_fence(self, fence: str) -> None:
        self._fences.add(check_fence(fence))

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        if check_fence(fence) not in self._fences:
            raise FenceClosed(f"fence {fence} is not open")
        return OpenedPuts(fence, {check_key(key): None for key in keys}, partial(self._put_fenced, fence))

    async def close_fence(self, fence: str) -> None:
        self._fences.discard(check_fence(fence))

    async def list_fences(self) -> Sequence[str]:
        return sorted(self._fences)

    async def share(self, key: str, life_ms: int) -> None:
        """Return None: no other process can read this memory."""

    def _create(self, key: str, buffers: Sequence[Buffer]) -> None:
        if key in self._objects:
            raise AlreadyExists(f"object {key} exists", object_key=key)
        self._replace(key, b"".join(buffers))

    def _replace(self, key: str, data: bytes) -> None:
        self._puts += 1
        if key not in self._objects:
            insort(self._keys, key)
        self._objects[key] = _Stored(data, ObjectInfo(key, len(data), f"{self._puts:x}", self._sources.now_ms()))

    def _forget(self, key: str) -> None:
        if self._objects.pop(key, None) is not None:
            del self._keys[bisect_right(self._keys, key) - 1]

    async def _put_fenced(self, fence: str, key: str, place: None, buffers: Sequence[Buffer]) -> None:
        self._create_fenced(fence, key, buffers)

    def _create_fenced(self, fence: str, key: str, buffers: Sequence[Buffer]) -> None:
        if fence not in self._fences:
            raise FenceClosed(f"fence {fence} is closed", object_key=key)
        self._create(key, buffers)

    def _stored(self, key: str) -> _Stored:
        found = self._objects.get(check_key(key))
        if found is None:
            raise ObjectMissing(f"no object {key}", object_key=key)
        return found

"""Who remembers what a store has promised, and holds against it what is found after the power was
cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ledgermq_ledger.object_store.contract import (
    AlreadyExists,
    Buffer,
    FenceClosed,
    FencedPuts,
    ObjectMissing,
    ObjectStore,
)
from ledgermq_ledger.object_store.file.store import FileStore
from tests.powercut.recording import Recording
from tests.stores.one_put import OnePut


@dataclass(frozen=True)
class Told:
    """`what`: put, delete, open, close; `done`: the store said so, else it was only asked."""

    what: str
    key: str
    done: bool
    content: bytes = b""


@dataclass
class Promises:
    """What has to be there, what may be, and what may not, after the events so far."""

    must: dict[str, set[bytes]] = field(default_factory=dict)
    may: dict[str, set[bytes]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)

    def take(self, told: Told) -> None:
        match told.what, told.done:
            case "put", False:
                self.may.setdefault(told.key, set()).add(told.content)
                self.gone.discard(told.key)
                if told.key in self.must:
                    self.must[told.key].add(told.content)
            case "put", True:
                self.must[told.key] = {told.content}
            case "exists", True:
                self.must[told.key] = set(self.may[told.key])
            case "delete", False:
                self.must.pop(told.key, None)
            case "delete", True:
                self.gone.add(told.key)
            case "open", True:
                self.open.add(told.key)
            case "close", False:
                self.open.discard(told.key)
            case "close", True:
                self.closed.add(told.key)

    async def check(self, root: Path) -> None:
        """Open what the power cut left, as the next process would."""
        async with FileStore(root) as store:
            found = {info.key: await store.get(info.key) async for info in store.list("")}
            for key, content in found.items():
                assert key not in self.gone, f"{key} was deleted, and is back"
                assert content in self.may.get(key, ()), f"{key} holds {content[:40]!r}, which no process put"
            for key, contents in self.must.items():
                assert found.get(key) in contents, f"{key} was acknowledged, and holds {found.get(key)!r:.50}"
            fences = set(await store.list_fences())
            assert self.open <= fences, f"fences {self.open - fences} were opened, and are not there"
            assert not self.closed & fences, f"fences {self.closed & fences} were closed, and are open again"
            await store.put_if_absent("after/the-power-cut", [b"works"])
            assert await store.get("after/the-power-cut") == b"works"


class Witness(OnePut):
    """Notes what is asked of a store and what it says, between the steps of the disk that it is on."""

    def __init__(self, inner: ObjectStore, recording: Recording) -> None:
        super().__init__(inner)
        self._recording = recording

    def tell(self, what: str, key: str, done: bool, content: bytes = b"") -> None:
        self._recording.note(Told(what, key, done, content))

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        content = b"".join(bytes(b) for b in buffers)
        self.tell("put", key, False, content)
        try:
            await self.inner.put_if_absent(key, buffers)
        except AlreadyExists:
            self.tell("exists", key, True)
            raise
        self.tell("put", key, True, content)

    async def put(self, key: str, data: Buffer) -> None:
        self.tell("put", key, False, bytes(data))
        await self.inner.put(key, data)
        self.tell("put", key, True, bytes(data))

    async def get(self, key: str) -> bytes:
        found = await self.inner.get(key)
        self.tell("exists", key, True)
        return found

    async def get_suffix(self, key: str, length: int) -> bytes:
        found = await self.inner.get_suffix(key, length)
        self.tell("exists", key, True)
        return found

    async def make_durable(self, keys: Sequence[str]) -> None:
        await self.inner.make_durable(keys)
        for key in keys:
            self.tell("exists", key, True)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.tell("delete", key, False)
        await self.inner.delete(keys)
        for key in keys:
            self.tell("delete", key, True)

    async def open_fence(self, fence: str) -> None:
        await self.inner.open_fence(fence)
        self.tell("open", fence, True)

    async def close_fence(self, fence: str) -> None:
        self.tell("close", fence, False)
        await self.inner.close_fence(fence)
        self.tell("close", fence, True)

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        return _WitnessedPuts(self, await self.inner.fenced_puts(fence, keys, url_life_ms))


class _WitnessedPuts(FencedPuts):
    def __init__(self, witness: Witness, inner: FencedPuts) -> None:
        self._witness = witness
        self._inner = inner

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        content = b"".join(bytes(b) for b in buffers)
        self._witness.tell("put", key, False, content)
        try:
            await self._inner.put_if_absent(key, buffers)
        except AlreadyExists:
            self._witness.tell("exists", key, True)
            raise
        self._witness.tell("put", key, True, content)


EXPECTED: tuple[type[Exception], ...] = (AlreadyExists, FenceClosed, ObjectMissing)


def promises_of(events: Sequence[Any]) -> Promises:
    promises = Promises()
    for event in events:
        if isinstance(event, Told):
            promises.take(event)
    return promises

"""A process that dies at any store operation, before or after its effect: whoever comes next ends
with the same result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

import pytest

from ledger import keys
from ledger.log.history import read_history
from ledger.log.internal_topic import read_internal
from ledger.object_store.contract import Buffer, FencedPuts, ObjectInfo, ObjectStore
from ledger.object_store.memory import MemoryStore
from ledger.topics.catalog import topic_key
from ledgermq.sources import Sources
from tests.stores.backends import seeded_sources
from tests.stores.one_put import OnePut
from tests.virtual_time import run_virtual, virtual, virtual_sources
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, read_everything, read_parquet_rows


class Crash(BaseException):
    """The end of a process: nothing in the program may catch it."""


class DyingStore(OnePut):
    """Dies at operation `dies_at`, counted from 1, before its effect or right after it; everything
    later fails too.
    """

    def __init__(self, inner: ObjectStore, dies_at: int, after_effect: bool) -> None:
        super().__init__(inner)
        self.calls = 0
        self._dies_at = dies_at
        self._after_effect = after_effect

    def before(self) -> None:
        self.calls += 1
        if self.calls > self._dies_at or (self.calls == self._dies_at and not self._after_effect):
            raise Crash

    def after(self) -> None:
        if self.calls >= self._dies_at:
            raise Crash

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        self.before()
        await self.inner.put_if_absent(key, buffers)
        self.after()

    async def get(self, key: str) -> bytes:
        self.before()
        return await self.inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.before()
        return await self.inner.get_range(key, start, length)

    async def get_suffix(self, key: str, length: int) -> bytes:
        self.before()
        return await self.inner.get_suffix(key, length)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        self.before()
        async for info in self.inner.list(prefix, start_after):
            yield info

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.before()
            await self.inner.delete([key])
            self.after()

    async def head(self, key: str) -> ObjectInfo:
        self.before()
        return await self.inner.head(key)

    async def open_fence(self, fence: str) -> None:
        self.before()
        await self.inner.open_fence(fence)
        self.after()

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        self.before()
        return _DyingPuts(self, await self.inner.fenced_puts(fence, keys, url_life_ms))

    async def close_fence(self, fence: str) -> None:
        self.before()
        await self.inner.close_fence(fence)
        self.after()

    async def list_fences(self) -> Sequence[str]:
        self.before()
        return await self.inner.list_fences()


class _DyingPuts(FencedPuts):
    def __init__(self, store: DyingStore, inner: FencedPuts) -> None:
        self._store = store
        self._inner = inner

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        self._store.before()
        await self._inner.put_if_absent(key, buffers)
        self._store.after()


async def _filled(sources: Sources) -> Root:
    root = await Root.open(MemoryStore("test", sources), sources)
    await root.create_topic("t", partitions=3, parquet_target_bytes="1500")
    await root.produce("t", (0, [b"a", b"b"]), (2, [b"c" * 600]))
    assert not (await root.compact()).failures
    for i in range(3):
        await root.produce("t", (0, [b"d%d" % i] * 5), (1, [b"e" * 900]), (2, [b"f"]))
    await root.create_topic("later")
    return root


async def _check(root: Root) -> None:
    """Readers miss nothing; then another process, without faults, ends where a run without the
    crash ends.
    """
    assert await read_everything(root) == root.produced
    await read_parquet_rows(root.store)
    report = await root.compact(sources=seeded_sources(99))
    assert not report.failures
    rows = await read_parquet_rows(root.store)
    assert {part: list(found.values()) for part, found in rows.items()} == root.produced
    left = [info.key async for info in root.store.list("ledgers/")]
    segments = [key for key in left if "/segments/" in key]
    assert segments == [keys.segment(0, 1), keys.segment(1, 1)], "claims only"
    assert not [key for key in left if "/compactions/" in key]
    assert len([key for key in left if "/checkpoints/" in key]) == 2
    assert list(await root.store.list_fences()) == []
    history = await read_history(ledger_of(root.store, 0))
    assert [r.key for r in await read_internal(root.store, history, 0, 0)] == [
        topic_key(name) for name in ("__metadata", "t", "later")
    ]


async def _run_until_crash(root: Root, dies_at: int, after_effect: bool) -> bool:
    """True: it died."""
    dying = DyingStore(root.store, dies_at, after_effect)
    try:
        await root.compact(dying, seeded_sources(1000 + dies_at))
    except Crash:
        return True
    return False


@pytest.mark.parametrize("after_effect", [False, True])
def test_any_process_finishes_what_a_crashed_one_began(after_effect: bool) -> None:
    async def run(dies_at: int) -> bool:
        root = await _filled(virtual_sources(dies_at))
        died = await _run_until_crash(root, dies_at, after_effect)
        await _check(root)
        return died

    dies_at = 1
    while run_virtual(partial(run, dies_at)):
        dies_at += 1
    assert dies_at > 100, "the run has far more operations than that"


@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_many_crashes_one_after_another(seed: int) -> None:
    sources = virtual_sources(seed)
    root = await _filled(sources)
    for _ in range(6):
        await _run_until_crash(root, sources.random.randrange(1, 120), sources.random.random() < 0.5)
        await root.produce("t", (1, [b"g"]))
        assert await read_everything(root) == root.produced
    await _check(root)


@pytest.mark.parametrize("seed", range(30))
@virtual
async def test_rivals_end_with_one_result(seed: int) -> None:
    """Three processes at once, which a seed lets sleep between operations; one of them may die."""
    sources = virtual_sources(seed)
    root = await _filled(sources)
    stores = [_SlowStore(root.store, virtual_sources(seed * 10 + i)) for i in range(3)]
    reports = await asyncio.gather(
        *(root.compact(slow, virtual_sources(seed * 10 + i)) for i, slow in enumerate(stores))
    )
    assert not [report.failures for report in reports if report.failures]
    await _check(root)


class _SlowStore(DyingStore):
    """Every operation takes a random time before its effect."""

    def __init__(self, inner: ObjectStore, sources: Sources) -> None:
        super().__init__(inner, 10**9, False)
        self._sources = sources

    async def _sleep(self) -> None:
        await asyncio.sleep(self._sources.random.expovariate(1.0) if self._sources.random.random() < 0.9 else 30.0)

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self._sleep()
        await super().put_if_absent(key, buffers)

    async def get(self, key: str) -> bytes:
        await self._sleep()
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self._sleep()
        return await super().get_range(key, start, length)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._sleep()
        await super().delete(keys)

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        await self._sleep()
        inner = await self.inner.fenced_puts(fence, keys, url_life_ms)
        await self._sleep()
        return _SlowPuts(self, inner)

    async def close_fence(self, fence: str) -> None:
        await self._sleep()
        await super().close_fence(fence)


class _SlowPuts(_DyingPuts):
    def __init__(self, store: _SlowStore, inner: FencedPuts) -> None:
        super().__init__(store, inner)
        self._slow = store

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self._slow._sleep()
        await super().put_if_absent(key, buffers)

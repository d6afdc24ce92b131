"""A fence that is lost from outside while its plan is open: what is there counts, the rest is
planned again, nothing is lost or doubled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from ledgermq.errors import DataDamaged
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.object_store.contract import FenceClosed, FencedPuts, ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from tests.stores.backends import file_store, memory_store, seeded_sources
from tests.stores.one_put import OnePut
from tests.worlds.roots import NoTasks, Root, parquet_keys, read_everything, read_parquet_rows


@pytest.fixture(params=["memory", "file"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    opened: AbstractAsyncContextManager[ObjectStore] = (
        memory_store() if request.param == "memory" else file_store(tmp_path)
    )
    async with opened as found:
        yield found


class _StopsAfter(StoreWrapper):
    """Puts `count` files of a plan, then stops."""

    def __init__(self, inner: ObjectStore, count: int) -> None:
        super().__init__(inner)
        self.left = count
        self.one_at_a_time = asyncio.Lock()
        """Else the stop of one task cancels the put of another."""

    async def fenced_puts(self, fence: str, keys: object, url_life_ms: int) -> FencedPuts:
        return _Puts(self, await self.inner.fenced_puts(fence, keys, url_life_ms))  # type: ignore[arg-type]


class _Puts(FencedPuts):
    def __init__(self, store: _StopsAfter, inner: FencedPuts) -> None:
        self._store = store
        self._inner = inner

    async def put_if_absent(self, key: str, buffers: object) -> None:
        async with self._store.one_at_a_time:
            self._store.left -= 1
            if self._store.left < 0:
                raise DataDamaged("stopped")
            await self._inner.put_if_absent(key, buffers)  # type: ignore[arg-type]


async def _root(store: ObjectStore) -> Root:
    root = await Root.open(store, seeded_sources())
    await root.create_topic("t", partitions=3)
    for i in range(2):
        await root.produce("t", (0, [b"a%d" % i]), (1, [b"b%d" % i] * 2), (2, [b"c%d" % i]))
    return root


async def _lose_fences(store: ObjectStore) -> None:
    fences = await store.list_fences()
    assert fences
    for fence in fences:
        await store.close_fence(fence)


@pytest.mark.parametrize("files", [0, 1, 2, 3])
async def test_compaction_goes_on(store: ObjectStore, files: int) -> None:
    root = await _root(store)
    stopped = await root.compact(_StopsAfter(store, files))
    assert bool(stopped.failures) == (files < 3)
    assert len(await parquet_keys(store)) == files
    if files < 3:
        await _lose_fences(store)
    report = await root.compact()
    assert not report.failures
    rows = await read_parquet_rows(store)
    assert {part: list(found.values()) for part, found in rows.items()} == root.produced
    assert (await root.newest()).trim_slot == (await root.newest()).state.slot + 1


async def test_what_was_not_made_keeps_its_slots(store: ObjectStore) -> None:
    root = await _root(store)
    await root.compact(NoTasks(store))
    await _lose_fences(store)
    await root.compact(_NoSecondPlan(store))
    checkpoint = await root.newest()
    assert (checkpoint.finished_plan, checkpoint.trim_slot) == (1, 2)
    assert partition_of(checkpoint, root.topics["t"].id, 0).parquet_end == 0
    assert await read_everything(root) == root.produced


class _NoSecondPlan(OnePut):
    async def put_if_absent(self, key: str, buffers: object) -> None:
        if "/compactions/" in key:
            raise DataDamaged("no second plan")
        await self.inner.put_if_absent(key, buffers)  # type: ignore[arg-type]


class _Refusing(StoreWrapper):
    """Says that fences are closed which are not, as a store does whose permissions have expired."""

    async def fenced_puts(self, fence: str, keys: object, url_life_ms: int) -> FencedPuts:
        raise FenceClosed("expired")


@pytest.mark.parametrize("closes", [True, False])
async def test_a_fence_that_is_still_there_is_not_lost(store: ObjectStore, closes: bool) -> None:
    root = await _root(store)
    refusing = _Refusing(store)
    refusing.fences_close_at_once = closes
    report = await root.compact(refusing)
    assert isinstance(report.failures[1], FenceClosed)
    assert (await root.newest()).finished_plan == 0
    assert (await root.compact()).records == 8

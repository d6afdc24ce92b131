"""A task that sleeps before any two of its store operations brings no deleted file back, whatever
kind of fence the store has.

The first sleep is longer than a permission lives, so that the task has to take a new one; the
second outlasts the deletion of its file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

import pytest

from ledgermq.errors import LedgerMQError
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.topics.expired_files import remove_expired as remove_expired_files
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.plans import read_plan
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import Buffer, FencedPuts, ObjectInfo, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.compacting.task import run_task, split_plan
from tests.stores.url import UrlStore
from tests.virtual_time import run_virtual, virtual_sources
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import NoTasks, Root, parquet_keys

NAP_S = 7.0
HOUR_S = 3600.0


class _SleepingStore(StoreWrapper):
    """Sleeps before two operations, counted from 1."""

    def __init__(self, inner: ObjectStore, nap_at: int, sleep_at: int) -> None:
        super().__init__(inner)
        self.calls = 0
        self._sleeps = {nap_at: NAP_S, sleep_at: HOUR_S}

    async def pass_time(self) -> None:
        self.calls += 1
        await asyncio.sleep(self._sleeps.get(self.calls, 0))

    async def get(self, key: str) -> bytes:
        await self.pass_time()
        return await self.inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self.pass_time()
        return await self.inner.get_range(key, start, length)

    async def get_suffix(self, key: str, length: int) -> bytes:
        await self.pass_time()
        return await self.inner.get_suffix(key, length)

    async def head(self, key: str) -> ObjectInfo:
        await self.pass_time()
        return await self.inner.head(key)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self.pass_time()
        async for info in self.inner.list(prefix, start_after):
            yield info

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        await self.pass_time()
        return _SleepingPuts(self, await self.inner.fenced_puts(fence, keys, url_life_ms))


class _SleepingPuts(FencedPuts):
    def __init__(self, store: _SleepingStore, inner: FencedPuts) -> None:
        self._store = store
        self._inner = inner

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self._store.pass_time()
        await self._inner.put_if_absent(key, buffers)


@pytest.mark.parametrize("fenced", [True, False])
def test_no_deleted_file_comes_back(fenced: bool) -> None:
    async def run(nap_at: int, sleep_at: int) -> bool:
        sources = virtual_sources(sleep_at)
        objects: ObjectStore = MemoryStore("test", sources)
        store = objects if fenced else UrlStore(objects, sources)
        root = await Root.open(store, sources)
        topic = await root.create_topic("t")
        await root.produce("t", (0, [b"a"]), timestamp_ms=sources.now_ms())
        assert (await root.compact(NoTasks(store))).failures
        plan = await read_plan(store, 1, 1)
        assert plan is not None
        task = split_plan(plan, store.url, root.cluster)[0]
        sleeping = _SleepingStore(store, nap_at, sleep_at)
        late = asyncio.create_task(run_task(task, sleeping, sources, run_inline))
        await asyncio.sleep(NAP_S + 1)
        assert not (await root.compact()).failures
        await advance_checkpoint(
            ledger_of(store, 1, cluster=root.cluster, sources=sources), log_start_move({PartitionId(topic.id, 0): 1})
        )
        await asyncio.sleep(root.cluster.parquet_min_age_ms / 1000 + 1)
        assert (
            await remove_expired_files(ledger_of(store, 1, cluster=root.cluster, sources=sources), await root.catalog())
            == 1
        )
        slept = not late.done()
        result = (await asyncio.gather(late, return_exceptions=True))[0]
        assert not isinstance(result, BaseException) or isinstance(result, LedgerMQError)
        assert await parquet_keys(store) == []
        return slept

    naps = 0
    while True:
        sleep_at = naps + 1
        while run_virtual(partial(run, naps, sleep_at)):
            sleep_at += 1
        if sleep_at == naps + 1:
            break
        naps += 1
    assert naps > 5, "look for the file, sign, look at the checkpoint, read index and range, put"

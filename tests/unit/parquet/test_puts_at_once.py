"""Files of a task are put side by side, a few at a time and of so many bytes; the first failure
ends the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ledgermq.errors import Unauthorized
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.log.chains.plans import read_plan
from ledgermq_ledger.object_store.contract import Buffer, FencedPuts, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.compacting import task as tasks
from ledgermq_ledger.parquet.compacting.task import run_task, split_plan
from tests.worlds.roots import NoTasks, Root, read_parquet_rows

PARTITIONS = 7


class SlowPuts(StoreWrapper):
    """Counts the puts under way; the put number `fails_at` is refused."""

    def __init__(self, inner: ObjectStore, fails_at: int = -1) -> None:
        super().__init__(inner)
        self.fails_at = fails_at
        self.begun = self.running = self.most = 0

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        return _Slow(self, await self.inner.fenced_puts(fence, keys, url_life_ms))


class _Slow(FencedPuts):
    def __init__(self, store: SlowPuts, inner: FencedPuts) -> None:
        self.store, self.inner = store, inner

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        store = self.store
        store.begun += 1
        number = store.begun
        store.running += 1
        store.most = max(store.most, store.running)
        try:
            for _ in range(1000):  # turns of the loop, not time: the others come to their puts meanwhile
                await asyncio.sleep(0)
            if number == store.fails_at:
                raise Unauthorized("no")
            await self.inner.put_if_absent(key, buffers)
        finally:
            store.running -= 1


@pytest.fixture
async def root(sources: Sources) -> Root:
    """Stopped after a plan of seven files."""
    root = await Root.open(MemoryStore("puts", sources), sources)
    await root.create_topic("t", PARTITIONS)
    await root.produce("t", *((partition, [b"%d" % partition]) for partition in range(PARTITIONS)))
    assert (await root.compact(NoTasks(root.store))).failures
    return root


async def run(root: Root, store: SlowPuts) -> None:
    plan = await read_plan(root.store, 1, 1)
    assert plan is not None
    [task] = split_plan(plan, store.url, root.cluster)
    await run_task(task, store, root.sources, run_inline)


@pytest.mark.parametrize(("bytes_max", "most"), [(1 << 20, tasks.PUTS_AT_ONCE), (1, 1)])
async def test_so_many_at_once_and_a_large_one_alone(
    root: Root, monkeypatch: pytest.MonkeyPatch, bytes_max: int, most: int
) -> None:
    monkeypatch.setattr(tasks, "PUT_BYTES_MAX", bytes_max)
    store = SlowPuts(root.store)
    await run(root, store)
    assert (store.begun, store.most, store.running) == (PARTITIONS, most, 0)
    assert {key: list(rows.values()) for key, rows in (await read_parquet_rows(root.store)).items()} == root.produced


async def test_a_put_that_fails_ends_the_task_and_leaves_none_running(root: Root) -> None:
    store = SlowPuts(root.store, fails_at=1)
    with pytest.raises(Unauthorized):
        await run(root, store)
    assert store.running == 0
    assert store.begun < PARTITIONS
    await run(root, SlowPuts(root.store))
    assert {key: list(rows.values()) for key, rows in (await read_parquet_rows(root.store)).items()} == root.produced

"""A task that was told indexes asks for ranges only, and writes what it would have written without
them, whatever is in the slots.
"""

from __future__ import annotations

import pickle

import pytest

from ledgermq.errors import DataDamaged
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.log.chains.plans import read_plan
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.segments.indexes import SegmentIndexes
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.metered import MeteredStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.compacting.task import CompactionTask, TaskOutcome, run_task, split_plan
from tests.stores.counting import CountingMeter
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import NoTasks, Root, read_parquet_rows

SLOTS = 3


@pytest.fixture
async def root(sources: Sources) -> Root:
    """A plan of two files, for two partitions of three segments each; no task has run."""
    root = await Root.open(MemoryStore("known", sources), sources)
    await root.create_topic("t", 3)
    for number in range(SLOTS):
        await root.produce("t", (0, [b"a%d" % number]), (1, [b"b%d" % number] * 2))
    assert (await root.compact(NoTasks(root.store))).failures
    return root


async def task_of(root: Root, *, known: bool) -> CompactionTask:
    indexes = SegmentIndexes()
    await read_history(ledger_of(root.store, 1, known=indexes))
    plan = await read_plan(root.store, 1, 1)
    assert plan is not None
    [task] = split_plan(plan, root.store.url, root.cluster, known=indexes if known else None)
    assert len(task.indexes) == (SLOTS if known else 0)
    found: CompactionTask = pickle.loads(pickle.dumps(task))
    return found


async def run(root: Root, task: CompactionTask, store: ObjectStore | None = None) -> tuple[TaskOutcome, dict[str, int]]:
    meter = CountingMeter()
    metered = MeteredStore(store or root.store, meter)
    return await run_task(task, metered, root.sources, run_inline), meter.by_operation()


async def test_a_known_index_is_not_read_again(root: Root) -> None:
    outcome, requests = await run(root, await task_of(root, known=True))
    assert [file.rows for file in outcome.files] == [SLOTS, 2 * SLOTS]
    assert (requests["get_range"], requests.get("get_suffix", 0)) == (SLOTS, 0)
    rows = await read_parquet_rows(root.store)
    assert {key: list(found.values()) for key, found in rows.items()} == root.produced


async def test_without_indexes_each_is_read(root: Root) -> None:
    _, requests = await run(root, await task_of(root, known=False))
    assert (requests["get_range"], requests["get_suffix"]) == (SLOTS, SLOTS)


class DamagedOnce(StoreWrapper):
    """The first range that is read arrives with a byte that is wrong."""

    damaged = False

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        data = bytearray(await super().get_range(key, start, length))
        if not self.damaged:
            self.damaged = True
            data[len(data) // 2] ^= 1
        return bytes(data)


async def test_damage_on_the_way_parks_nothing(root: Root) -> None:
    outcome, requests = await run(root, await task_of(root, known=True), DamagedOnce(root.store))
    assert [file.rows for file in outcome.files] == [SLOTS, 2 * SLOTS]
    assert (requests["get_range"], requests["get_suffix"]) == (SLOTS + 1, 1)


@pytest.mark.parametrize("known", [True, False])
async def test_a_slot_that_holds_another_segment_is_never_an_input(root: Root, known: bool) -> None:
    task = await task_of(root, known=known)
    other = await Root.open(MemoryStore("other", root.sources), root.sources)
    await other.create_topic("t", 2)
    for number in range(SLOTS):
        await other.produce("t", (0, [b"A%d" % number]), (1, [b"B%d" % number] * 2))
    key = keys.segment(1, SLOTS)
    await root.store.delete([key])
    await root.store.put_if_absent(key, [await other.store.get(key)])
    with pytest.raises(DataDamaged) as caught:
        await run(root, task)
    assert caught.value.object_key == key
    assert await read_parquet_rows(root.store) == {}


async def test_no_more_than_a_bound_travels(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = await task_of(root, known=True)
    monkeypatch.setattr("ledgermq_ledger.parquet.compacting.task.INDEX_BYTES_MAX", sum(map(len, whole.indexes[:2])))
    indexes = SegmentIndexes()
    await read_history(ledger_of(root.store, 1, known=indexes))
    plan = await read_plan(root.store, 1, 1)
    assert plan is not None
    [task] = split_plan(plan, root.store.url, root.cluster, known=indexes)
    assert task.indexes == whole.indexes[:2]
    _, requests = await run(root, task)
    assert (requests["get_range"], requests["get_suffix"]) == (SLOTS, 1)

"""Late puts: a process that sleeps in the middle of a task cannot bring a deleted file back, on
memory and on files.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.topics.expired_files import remove_expired as remove_expired_files
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.plans import PlanOvertaken, fence_of, put_plan, read_plan, require_open
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import FenceClosed, ObjectStore
from ledgermq_ledger.parquet.compacting.task import run_task, split_plan
from ledgermq_ledger.parquet.files.columns import empty_file, note_of_file
from tests.stores.backends import file_store, memory_store
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, parquet_keys


@pytest.fixture(params=["memory", "file"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    opened: AbstractAsyncContextManager[ObjectStore] = (
        memory_store() if request.param == "memory" else file_store(tmp_path)
    )
    async with opened as found:
        yield found


async def _stopped_after_plan(store: ObjectStore, sources: Sources) -> Root:
    from tests.worlds.roots import NoTasks

    root = await Root.open(store, sources)
    await root.create_topic("t")
    await root.produce("t", (0, [b"a"]))
    assert (await root.compact(NoTasks(store))).failures
    return root


async def test_a_late_put_is_refused_once_the_plan_is_finished(store: ObjectStore) -> None:
    sources = Sources()
    root = await _stopped_after_plan(store, sources)
    plan = await read_plan(store, 1, 1)
    assert plan is not None
    late = await store.fenced_puts(fence_of(plan), [plan.files[0].key], root.cluster.url_life_ms)
    await require_open(store, plan)  # and now the process sleeps
    assert not (await root.compact()).failures
    await store.delete([plan.files[0].key])
    with pytest.raises(FenceClosed):
        await late.put_if_absent(
            plan.files[0].key, empty_file(note_of_file(plan.files[0], plan, root.cluster.cluster_id)).parts
        )
    assert await parquet_keys(store) == []


async def test_a_late_task_finds_its_plan_overtaken(store: ObjectStore) -> None:
    sources = Sources()
    root = await _stopped_after_plan(store, sources)
    plan = await read_plan(store, 1, 1)
    assert plan is not None
    task = split_plan(plan, store.url, root.cluster)[0]
    assert not (await root.compact()).failures
    found = await run_task(task, store, sources, run_inline)
    assert [file.rows for file in found.files] == [1], "the file exists: nothing to do"
    await store.delete([plan.files[0].key])
    with pytest.raises(PlanOvertaken):
        await run_task(task, store, sources, run_inline)
    assert await parquet_keys(store) == []


async def test_a_plan_put_again_after_it_was_finished_is_never_run(store: ObjectStore) -> None:
    sources = Sources()
    root = await _stopped_after_plan(store, sources)
    plan = await read_plan(store, 1, 1)
    assert plan is not None
    assert not (await root.compact()).failures
    assert await read_plan(store, 1, 1) is None
    plan.put_id = sources.new_id()
    assert await put_plan(store, plan, sources), "a process that slept before its put wins the number again"
    with pytest.raises(PlanOvertaken):
        await require_open(store, plan)
    await root.produce("t", (0, [b"b"]))
    assert (await root.compact()).records == 1
    assert await read_plan(store, 1, 1) is None
    assert list(await store.list_fences()) == []


async def test_parquet_is_deleted_only_when_old_enough_and_its_fences_are_closed(sources: Sources) -> None:
    clock_us = [10**15]
    async with memory_store(Sources(lambda: clock_us[0], sources.random)) as store:
        root = await Root.open(store, sources)
        topic = await root.create_topic("t")
        for i in range(3):
            await root.produce("t", (0, [b"%d" % i] * 2))
            await root.compact()
            clock_us[0] += 8_000_000
        kept = await parquet_keys(store)
        await advance_checkpoint(
            ledger_of(store, 1, cluster=root.cluster, sources=sources), log_start_move({PartitionId(topic.id, 0): 5})
        )
        catalog = await root.catalog()
        assert await remove_expired_files(ledger_of(store, 1, cluster=root.cluster, sources=sources), catalog) == 0, (
            "page 2, witness of commit 1, is 16 s old"
        )
        clock_us[0] += 5_000_000
        assert (
            await remove_expired_files(ledger_of(store, 1, cluster=root.cluster, sources=sources), await root.catalog())
            == 1
        )
        assert await parquet_keys(store) == kept[1:]
        clock_us[0] += 30_000_000
        assert (
            await remove_expired_files(ledger_of(store, 1, cluster=root.cluster, sources=sources), await root.catalog())
            == 1
        ), "the last file holds the log start"
        assert await parquet_keys(store) == kept[2:]

"""The engine says what a task of Parquet compaction may take: how much of the plan is in one, and
how many rows wait for row groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.log.chains.plans import read_plan
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compacting.group_build import _Group
from ledgermq_ledger.parquet.compacting.task import run_task, split_plan
from tests.worlds.roots import NoTasks, Root, read_parquet_rows

PARTITIONS, ROUNDS, VALUE_BYTES = 6, 8, 5000
MEMORY_BYTES = 60_000


@pytest.fixture
async def root(sources: Sources) -> Root:
    """Stopped after a plan of six files."""
    root = await Root.open(MemoryStore("memory", sources), sources)
    await root.create_topic("t", PARTITIONS)
    for number in range(ROUNDS):
        await root.produce(
            "t", *((partition, [b"%d" % number + bytes(VALUE_BYTES)]) for partition in range(PARTITIONS))
        )
    assert (await root.compact(NoTasks(root.store))).failures
    return root


async def test_tasks_are_as_small_as_the_engine_asks_and_hold_no_more_rows(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0

    def take(self: _Group, pieces: Iterable[Any], object_key: str, stored_us: int) -> None:
        nonlocal most
        real(self, pieces, object_key, stored_us)
        most = max(most, sum(builder.pending_bytes for builder in self.builders.values()))

    real = _Group.take
    monkeypatch.setattr(_Group, "take", take)
    plan = await read_plan(root.store, 1, 1)
    assert plan is not None
    assert [task.files for task in split_plan(plan, root.store.url, root.cluster)] == [PARTITIONS]
    tasks = split_plan(plan, root.store.url, root.cluster, memory_bytes=MEMORY_BYTES)
    largest = max(file.source_bytes for file in plan.files)
    assert all(task.source_bytes < MEMORY_BYTES // 4 + largest for task in tasks)
    assert sum(task.files for task in tasks) == PARTITIONS
    for task in tasks:
        await run_task(task, root.store, root.sources, run_inline)
    assert 0 < most <= MEMORY_BYTES // 2
    assert {key: list(rows.values()) for key, rows in (await read_parquet_rows(root.store)).items()} == root.produced

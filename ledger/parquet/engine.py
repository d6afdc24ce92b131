"""Where the tasks of a round run: one seam, two engines. `LocalEngine` here, in this process; `SparkEngine` in `spark/`.

An engine runs every task once and returns their outcomes, in any order. It raises what a task raised: the round stops, and whoever
comes next finishes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from ledger.object_store.contract import ObjectStore
from ledger.parquet.group_build import RunBlocking
from ledger.parquet.task import CompactionTask, TaskOutcome, run_task
from ledgermq.sources import Sources

OnTaskDone = Callable[[CompactionTask, TaskOutcome], None]
"""Progress only: a task may be reported twice, or late, but never before its files are stored."""

TASKS_AT_ONCE = 2


class Engine(Protocol):
    @property
    def parallel(self) -> int:
        """Tasks that run at the same time: the plan is cut into at least as many, where it can be."""

    async def run(self, store: ObjectStore, tasks: Sequence[CompactionTask], on_done: OnTaskDone) -> list[TaskOutcome]:
        """The outcome of every task. Raises PlanOvertaken, DataDamaged, Unavailable, the store's errors."""


class LocalEngine:
    """Tasks in this process; Arrow and Parquet work goes through `run_blocking`: threads, or `run_inline` in a simulation."""

    def __init__(self, sources: Sources, run_blocking: RunBlocking = asyncio.to_thread, tasks_at_once: int = TASKS_AT_ONCE) -> None:
        self._sources = sources
        self._run_blocking = run_blocking
        self._tasks_at_once = tasks_at_once
        self._room = asyncio.Semaphore(tasks_at_once)  # over all rounds that share the engine

    @property
    def parallel(self) -> int:
        return self._tasks_at_once

    async def run(self, store: ObjectStore, tasks: Sequence[CompactionTask], on_done: OnTaskDone) -> list[TaskOutcome]:
        async def run_one(task: CompactionTask) -> TaskOutcome:
            async with self._room:
                outcome = await run_task(task, store, self._sources, self._run_blocking)
            on_done(task, outcome)
            return outcome

        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(run_one(task)) for task in tasks]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in running]

"""Where the tasks of a round run: one seam, two engines. `LocalEngine` here, in this process;
`SparkEngine` in `spark/`.

A task is a value that can be pickled, names its store, and is safe to run twice, side by side,
anywhere: of Parquet compaction, or of the cleaning of keyed topics. An engine runs every task once
and returns their outcomes, in order. It raises what a task raised: the round stops, and whoever
comes next finishes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from ledger.blocking import RunBlocking
from ledger.object_store.contract import ObjectStore
from ledgermq.runtime.tasks import all_of
from ledgermq.sources import Sources


class StoreTask(Protocol):
    """What an engine runs; the outcome can be pickled, too."""

    @property
    def store_url(self) -> str:
        """By which another process opens the store."""

    async def run(self, store: ObjectStore, sources: Sources, run_blocking: RunBlocking) -> Any:
        """The outcome. Raises typed errors only."""


OnTaskDone = Callable[[Any, Any], None]
"""(task, outcome). Progress only: a task may be reported twice, or late, but never before its files
are stored.
"""

TASKS_AT_ONCE = 2
TASK_MEMORY_BYTES = 512 * 1024 * 1024


class Engine(Protocol):
    @property
    def parallel(self) -> int:
        """Tasks that run at the same time: the plan is cut into at least as many, where it can be."""

    @property
    def memory_bytes(self) -> int:
        """What one task may take, about; a file that is larger is made all the same."""

    async def run(self, store: ObjectStore, tasks: Sequence[Any], on_done: OnTaskDone) -> list[Any]:
        """`tasks`: of one kind of `StoreTask`.

        Their outcomes. Raises PlanOvertaken, DataDamaged, Unavailable, the store's errors.
        """


class LocalEngine:
    """Tasks in this process; Arrow and Parquet work goes through `run_blocking`: threads, or
    `run_inline` in a simulation.
    """

    def __init__(
        self,
        sources: Sources,
        run_blocking: RunBlocking = asyncio.to_thread,
        tasks_at_once: int = TASKS_AT_ONCE,
        memory_bytes: int = TASK_MEMORY_BYTES,
    ) -> None:
        self.memory_bytes = memory_bytes
        self._sources = sources
        self._run_blocking = run_blocking
        self._tasks_at_once = tasks_at_once
        self._room = asyncio.Semaphore(tasks_at_once)  # over all rounds that share the engine

    @property
    def parallel(self) -> int:
        return self._tasks_at_once

    async def run(self, store: ObjectStore, tasks: Sequence[Any], on_done: OnTaskDone) -> list[Any]:
        async def run_one(task: StoreTask) -> Any:
            async with self._room:
                outcome = await task.run(store, self._sources, self._run_blocking)
            on_done(task, outcome)
            return outcome

        outcomes = await all_of(run_one(task) for task in tasks)
        await self._run_blocking(
            pa.default_memory_pool().release_unused
        )  # else it stays with the process until the next round
        return outcomes

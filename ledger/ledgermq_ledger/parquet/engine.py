"""Run the tasks of a round: one interface, two engines. `LocalEngine` here, in this process;
`SparkEngine` in `spark/`.

A task can be pickled, names its store, and may run twice, side by side, anywhere. It compacts
Parquet or cleans keyed topics. An engine runs every task once and returns the outcomes in order. It
raises what a task raised: the round stops, and the next process that runs it finishes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from ledgermq.runtime.tasks import all_of
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.object_store.contract import ObjectStore


class StoreTask(Protocol):
    """A task that an engine runs; the outcome can be pickled, too."""

    @property
    def store_url(self) -> str:
        """Return the URL by which another process opens the store."""

    async def run(self, store: ObjectStore, sources: Sources, run_blocking: RunBlocking) -> Any:
        """Return the outcome. Raises typed errors only."""


OnTaskDone = Callable[[Any, Any], None]
"""Called with (task, outcome), for progress only: a task may be reported twice or late, but never
before its files are stored.
"""

TASKS_AT_ONCE = 2
TASK_MEMORY_BYTES = 512 * 1024 * 1024


class Engine(Protocol):
    @property
    def parallel(self) -> int:
        """Number of tasks that run at the same time; the plan is cut into at least as many if
        possible.
        """

    @property
    def memory_bytes(self) -> int:
        """Memory that one task may take, about; a larger file is made all the same."""

    async def run(self, store: ObjectStore, tasks: Sequence[Any], on_done: OnTaskDone) -> list[Any]:
        """Run tasks of one kind and return their outcomes.

        Raises PlanOvertaken, DataDamaged, Unavailable, the store's errors.
        """


class LocalEngine:
    """Runs tasks in this process; Arrow and Parquet work goes through `run_blocking`: threads, or
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
        )  # otherwise the memory stays with the process until the next round
        return outcomes

"""Run the tasks of a round as one Spark job (`SparkEngine`). A task carries the root URL; each
worker opens its own store, once.

Spark only distributes. A task is the same plain function as in other engines, and Spark may run it
again, anywhere and at any time, because all of its effects are fenced puts of the plan's own files.
A task's typed error comes back as a value, not as a stack trace through the JVM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import AccumulatorParam, SparkContext
from pyspark.accumulators import _accumulatorRegistry
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ledgermq.errors import InvalidConfig, LedgerMQError, Unavailable, from_code
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.log.chains.plans import PlanOvertaken
from ledgermq_ledger.object_store.contract import (
    FenceClosed,
    ObjectMissing,
    ObjectStore,
    StoreThrottled,
    StoreUncertain,
)
from ledgermq_ledger.parquet.engine import TASK_MEMORY_BYTES, OnTaskDone, StoreTask
from ledgermq_spark.session import open_session
from ledgermq_spark.worker import kept_store, worker

PROGRESS_EVERY_S = 0.25
_NOT_ON_THE_WIRE: tuple[type[LedgerMQError], ...] = (
    PlanOvertaken,
    FenceClosed,
    ObjectMissing,
    StoreThrottled,
    StoreUncertain,
)
"""Errors that no broker sends, but that may end a task."""


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """An error of `ledgermq.errors` on its way back to the driver."""

    code: str
    message: str
    object_key: str | None

    @classmethod
    def of(cls, error: LedgerMQError) -> TaskFailure:
        return cls(error.code, error.message, error.object_key)

    def error(self) -> LedgerMQError:
        for kind in _NOT_ON_THE_WIRE:
            if self.code == kind.code:
                return kind(self.message, object_key=self.object_key)
        return from_code(self.code, self.message, object_key=self.object_key)


class _Finished(AccumulatorParam[list[tuple[int, Any]]]):
    """Collect outcomes as they arrive, for progress; only what the job returns counts."""

    def zero(self, value: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        return []

    def addInPlace(self, value1: list[tuple[int, Any]], value2: list[tuple[int, Any]]) -> list[tuple[int, Any]]:  # noqa: N802 (Spark's name)
        return value1 + value2


class SparkEngine:
    """Runs in the driver; the caller keeps ownership of `spark`.

    It needs a classic session: Spark Connect has no RDDs.
    """

    memory_bytes = TASK_MEMORY_BYTES

    def __init__(self, spark: SparkSession) -> None:
        self._context: SparkContext = spark.sparkContext

    @property
    def parallel(self) -> int:
        return self._context.defaultParallelism

    async def run(self, store: ObjectStore, tasks: Sequence[Any], on_done: OnTaskDone) -> list[Any]:
        """`store` is not used by the executors: they open `store.url`, which a task carries.

        Raises what a task raised; Unavailable if Spark cancelled the tasks; RuntimeError if the
        session has ended.
        """
        if store.url.startswith("memory://"):
            raise InvalidConfig(
                f"{store.url}: Spark's executors are other processes and cannot see it; use --engine local"
            )
        finished = self._context.accumulator([], _Finished())

        def run_one(numbered: tuple[int, StoreTask]) -> Any:
            number, task = numbered
            outcome = run_on_executor(task)
            if not isinstance(outcome, TaskFailure):
                finished.add([(number, outcome)])
            return outcome

        work = str(getattr(tasks[0], "work", type(tasks[0]).__name__))
        job = self._context.parallelize(list(enumerate(tasks)), len(tasks)).map(run_one)

        def collect() -> list[Any]:
            self._context.setJobGroup(work, work)  # of this thread
            try:
                return job.collect()
            finally:
                _accumulatorRegistry.pop(
                    finished.aid
                )  # Spark keeps each accumulator without end; after the job it reports nothing more

        running = asyncio.create_task(asyncio.to_thread(collect))
        reported: set[int] = set()
        try:
            while not running.done():
                await asyncio.wait([running], timeout=PROGRESS_EVERY_S)
                _report_progress(finished.value, tasks, reported, on_done)
            return _outcomes(await running)
        except (Py4JError, PySparkException) as error:
            raise self._what_failed(error) from error
        finally:
            if not running.done():  # cancelled: free the executors for other work
                running.cancel()
                self._context.cancelJobGroup(work)

    def _what_failed(self, error: Exception) -> Exception:
        """Return the error of a failed job: retriable if Spark lost executors again and again, not
        retriable if the session has ended.
        """
        if isinstance(error, Py4JNetworkError) or self._context._jsc is None or self._context._jsc.sc().isStopped():
            return RuntimeError("the Spark session has ended")
        reason = str(error).strip().partition("\n\n")[0]
        return Unavailable(f"Spark cancelled the tasks: {reason[:500]}")


@contextmanager
def open_engine(sources: Sources) -> Iterator[SparkEngine]:
    """Open the engine of `ledgermq compact --engine spark`: a session for the duration of the run."""
    spark = open_session()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield SparkEngine(spark)
    finally:
        spark.stop()


def _report_progress(
    finished: Iterable[tuple[int, Any]], tasks: Sequence[Any], reported: set[int], on_done: OnTaskDone
) -> None:
    for number, outcome in finished:
        if number not in reported:
            reported.add(number)
            on_done(tasks[number], outcome)


def _outcomes(returned: Iterable[Any]) -> list[Any]:
    outcomes = []
    for found in returned:
        if isinstance(found, TaskFailure):
            raise found.error()
        outcomes.append(found)
    return outcomes


def run_on_executor(task: StoreTask) -> Any:
    """Run one task from start to end in the event loop of this worker; return its outcome, or a
    TaskFailure.
    """

    async def run() -> Any:
        async with kept_store(task.store_url) as store:
            return await task.run(store, Sources(), run_inline)

    try:
        return worker().loop.run_until_complete(run())
    except LedgerMQError as error:
        return TaskFailure.of(error)

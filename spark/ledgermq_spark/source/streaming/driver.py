"""Run the side of a streaming query that lives as long as the query: a loop in a thread, the store,
the followed ledgers.

If the store does not answer for a while, the query waits, and also for a partition that is on its way
to another bundle where there is no going on without it. Any other error is raised to Spark, which ends the query.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from ledgermq.errors import DeadlineExceeded, RetriableError
from ledgermq.runtime.process.loop_thread import LoopThread
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.root.open import open_store
from ledgermq_spark.shared_root import cluster_of
from ledgermq_spark.source.options import SourceOptions
from ledgermq_spark.source.ranges.planning import TopicRange
from ledgermq_spark.source.streaming.followed import FollowedTopics
from ledgermq_spark.source.streaming.positions import Position
from ledgermq_spark.source.streaming.servers import Progress
from ledgermq_spark.source.streaming.tracking import Tracker
from ledgermq_spark.source.typed import Subjects, subjects_of

OUTAGE_S = 120.0
"""A query waits for its store this long before it fails."""
PAUSE_S = 1.0
T = TypeVar("T")
log = logging.getLogger("ledgermq.spark")


class Batches:
    """How far each batch of a streaming query goes, and its tasks, in the order in which Spark asks for them.

    Every call raises what `Tracker` raises. Use it from one caller at a time.
    """

    def __init__(self, followed: FollowedTopics, tracker: Tracker) -> None:
        self.followed = followed
        self._tracker = tracker

    async def first(self) -> Position:
        """Return the position where a query without a checkpoint begins."""
        return await self.followed.planned(self._tracker.first, self.followed.every)

    async def next(self, start: Position, rows_max: int | None) -> Position:
        """Return the end of the batch that begins at `start`; `start` itself if nothing is new."""
        await self.followed.refresh(at_once=self._tracker.stops)
        # a query that stops at a position would take standing still for its end
        await self.followed.here(lambda: self._tracker.behind_its_end(start))
        return self._tracker.next(start, rows_max)

    def latest(self) -> Position:
        """Return the latest known position, without a request."""
        return self._tracker.latest()

    async def stop_at_latest(self) -> None:
        """Treat all that is durable now as the end from now on."""
        await self.followed.refresh(at_once=True, look=True)
        await self.followed.here(self.followed.every)
        self._tracker.stop_at_latest()

    async def ranges(self, start: Position, end: Position) -> list[list[TopicRange]]:
        """Return the ranges of the batch between two positions, by task."""
        plan, wanted = partial(self._tracker.ranges, start, end), partial(self._tracker.wanted, start, end)
        return await self.followed.planned(plan, wanted)

    async def subjects(self, tasks: list[list[TopicRange]]) -> Subjects:
        """Return what the rows of tasks that were planned before are decoded by. Raises as `subjects_of` does, too."""
        return subjects_of(await self.followed.catalog_now(), tasks, self.followed.options)


class Driver:
    """Use it from one caller at a time.

    Every call raises what `Batches` raises. Creating one opens the store, or waits for it.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._first: Position | None = None
        self._warned: set[str] = set()
        self._loop = LoopThread("ledgermq-source")
        self._progress: Progress | None = None
        try:
            self._store, self._batches = self._loop.run(patiently(self._open))
        except BaseException:
            self._loop.close(waits_for_workers=True)
            raise

    async def _open(self) -> tuple[ObjectStore, Batches]:
        store = await open_store(self._options.root, sources=Sources())
        try:
            cluster = await cluster_of(store)
            followed = FollowedTopics(store, cluster, self._options)
            await followed.open()
            if self._options.group:
                self._progress = Progress(self._options.servers, self._options.group, self._options.connection)
        except BaseException:
            await store.close()
            raise
        return store, Batches(followed, Tracker(followed, cluster.cluster_id, self._options, self._warn))

    def first(self) -> Position:
        """Return the position where the query begins; the same in every call."""
        if self._first is None:
            self._first = self._loop.run(patiently(self._batches.first))
        return self._first

    def next(self, start: Position, rows_max: int | None) -> Position:
        return self._loop.run(patiently(lambda: self._batches.next(start, rows_max)))

    def latest(self) -> Position:
        return self._batches.latest()

    def stop_at_latest(self) -> None:
        self._loop.run(patiently(self._batches.stop_at_latest))

    def ranges(self, start: Position, end: Position) -> list[list[TopicRange]]:
        return self._loop.run(patiently(lambda: self._batches.ranges(start, end)))

    def subjects(self, tasks: list[list[TopicRange]]) -> Subjects:
        return self._loop.run(patiently(lambda: self._batches.subjects(tasks)))

    def reached(self, position: Position) -> None:
        """Note that everything before the position has gone through the query."""
        if self._progress is not None:
            self._loop.call(self._progress.reached, position)

    def close(self) -> None:
        if self._progress is not None:
            self._loop.run(self._progress.close())
        self._loop.run(self._store.close())
        self._loop.close(waits_for_workers=True)

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            log.warning("%s", text)
            self._warned.add(text)


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat the call while the store does not answer, for OUTAGE_S. A move that has not ended in time is no
    outage.
    """
    until_s = asyncio.get_running_loop().time() + OUTAGE_S
    while True:
        try:
            return await call()
        except DeadlineExceeded:
            raise
        except RetriableError as error:
            if asyncio.get_running_loop().time() >= until_s:
                raise
            log.warning("the object store does not answer; the query waits for it: %s", error)
            await asyncio.sleep(PAUSE_S)

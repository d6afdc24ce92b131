"""Run the compaction service: move segments to Parquet by the topics' lag and size settings, again
and again.

Any number of services may run beside each other and beside brokers: the first process that comes
finishes a round that another one began. A service may be stopped at any instruction. After `stop`
it finishes the running rounds, and after a while leaves them to other processes. Must not know:
signals, terminals, metrics libraries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ledgermq.errors import LedgerMQError
from ledgermq.runtime.tasks import all_of
from ledgermq.runtime.wait import wait_for
from ledgermq.sources import Sources
from ledgermq_ledger.cluster import BUNDLES_AT_ONCE, ClusterSettings
from ledgermq_ledger.garbage.sweep import sweep
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import Engine
from ledgermq_ledger.parquet.merging.merge import merge_bundle
from ledgermq_ledger.parquet.report import CleaningReport, Lag, MergeReport, OnProgress, ParkedFile, RoundReport
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.rounds.runner import lag_of_bundle, round_of_bundle, try_to_tidy
from ledgermq_ledger.rounds.stillness import Stillness, find_stillness, lasts
from ledgermq_ledger.topics.catalog import Catalog

GARBAGE_EVERY_RUNS = 60
ROUNDS_MAX = 100
"""Rounds of one bundle in one run, so that the other bundles have their turn, too."""
FINISH_S = 20.0


class ServiceEvents:
    """Events of a service; every method may be overridden: a terminal prints them (`ledgermq
    compact --every`, the Spark job), a process logs them (`ledgermq compactor`).

    Called on the event loop, must return at once.
    """

    def round_finished(self, report: RoundReport) -> None: ...

    def partition_parked(self, bundle: int, parked: ParkedFile) -> None:
        """Called after the round that parked a partition was reported."""

    def bundle_done(self, bundle: int, lag: Lag) -> None:
        """Called after the rounds of a run, if there were any; `lag` is what is not yet in Parquet."""

    def version_published(self, report: CleaningReport) -> None: ...

    def merged(self, report: MergeReport) -> None:
        """Called when small files of a partition got a merged one."""

    def bundle_failed(self, bundle: int, error: LedgerMQError) -> None:
        """Called when a bundle fails; the next run tries it again."""

    def garbage_collected(self, objects: int) -> None:
        """Called if there was any garbage."""

    def garbage_not_collected(self, error: LedgerMQError) -> None: ...


class CompactionService:
    def __init__(
        self,
        store: ObjectStore,
        cluster: ClusterSettings,
        sources: Sources,
        engine: Engine,
        events: ServiceEvents,
        *,
        bundles: Sequence[int] | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        """`bundles`: None = all, those that are added later, too."""
        self._compaction = Compaction(store, cluster, sources, engine, on_progress=on_progress)
        self._events = events
        self._bundles = bundles
        self._still: dict[int, Stillness] = {}
        self._stopping = asyncio.Event()
        self._finish_s = 0.0

    def stop(self, finish_s: float = FINISH_S) -> None:
        """Begin no other round, and leave running ones to other processes if they are not done in
        this time.
        """
        self._finish_s = finish_s
        self._stopping.set()

    async def run(self, interval_s: Callable[[], float]) -> None:
        """Run until stopped or cancelled; the next process that compacts finishes the rounds that
        were running.
        """
        work = asyncio.create_task(self._runs(interval_s), name="compaction")
        stop = asyncio.create_task(self._stopping.wait(), name="stop")
        try:
            await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait([work], timeout=self._finish_s)
        finally:
            stop.cancel()
            work.cancel()
            await asyncio.wait([work])
        if not work.cancelled():
            work.result()

    async def run_once(self, *, collect: bool) -> None:
        """Compact all bundles, several at a time."""
        of_all = self._compaction
        try:
            catalog = await of_all.catalog()
        except LedgerMQError as error:
            self._events.bundle_failed(0, error)
            return
        bundles = self._bundles if self._bundles is not None else range(catalog.bundles(of_all.cluster))
        await all_of((self._try(bundle, catalog) for bundle in bundles), BUNDLES_AT_ONCE)
        if collect and not self._stopping.is_set():
            await self._collect()

    async def _runs(self, interval_s: Callable[[], float]) -> None:
        runs = 0
        while not self._stopping.is_set():
            await self.run_once(collect=runs % GARBAGE_EVERY_RUNS == 0)
            runs += 1
            await wait_for(self._stopping, interval_s() * self._compaction.sources.random.uniform(0.9, 1.1))

    async def _try(self, bundle: int, catalog: Catalog) -> None:
        store, now_s = self._compaction.store, asyncio.get_running_loop().time()
        still = self._still.get(bundle)
        try:
            if self._stopping.is_set() or (still is not None and await lasts(still, store, bundle, catalog, now_s)):
                return
            self._still.pop(bundle, None)
            if not await self._compact(bundle, catalog):
                return
            if (found := await find_stillness(self._compaction, bundle, catalog, now_s)) is not None:
                self._still[bundle] = found
        except LedgerMQError as error:
            self._events.bundle_failed(bundle, error)

    async def _compact(self, bundle: int, catalog: Catalog) -> bool:
        """Compact one bundle. Return False if something could not be deleted; that was reported,
        and this run does not retry it, because nothing has to wait for it.
        """
        rounds, tidy = 0, True
        while rounds < ROUNDS_MAX and not self._stopping.is_set():
            report = await round_of_bundle(self._compaction, bundle, catalog, everything=False)
            if report is not None:
                rounds += 1
                self._events.round_finished(report)
                for parked in report.parked:
                    self._events.partition_parked(bundle, parked)
            if tidy and (error := await try_to_tidy(self._compaction, bundle, catalog)) is not None:
                tidy = False
                self._events.bundle_failed(bundle, error)
            if report is None:
                break
        if rounds:
            self._events.bundle_done(bundle, await lag_of_bundle(self._compaction, bundle, catalog))
        if not self._stopping.is_set():
            for cleaned in await clean_bundle(self._compaction, bundle, catalog, everything=False):
                self._events.version_published(cleaned)
            for merged in await merge_bundle(self._compaction, bundle, catalog) if rounds else ():
                self._events.merged(merged)
        return tidy

    async def _collect(self) -> None:
        of_all = self._compaction
        try:
            swept = await sweep(of_all, grace_ms=0)
        except LedgerMQError as error:
            self._events.garbage_not_collected(error)
            return
        if swept.removed:
            self._events.garbage_collected(len(swept.removed))
        for failure in swept.failures.values():
            self._events.garbage_not_collected(failure)

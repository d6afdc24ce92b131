"""The compaction service: a process beside the brokers that turns segments into Parquet by the topics' own lag and size settings.

Any number of them may run, and brokers may compact too: a round that somebody began is finished by whoever comes first. Signals, admin
port, settings and logs are those of a broker process.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from ledger.catalog import read_catalog
from ledger.cluster import ClusterSettings, read_cluster
from ledger.commands.engines import find_engine
from ledger.object_store.contract import ObjectMissing, ObjectStore
from ledger.object_store.open import open_store
from ledger.parquet.engine import Engine
from ledger.parquet.gc import collect_garbage
from ledger.parquet.runner import compact_bundle
from ledger.segment_indexes import SegmentIndexes
from ledgermq.errors import LedgerMQError, Unavailable
from ledgermq.sources import Sources
from stateless_broker.bundle.context import BundleMetrics
from stateless_broker.health import Health
from stateless_broker.logs import configure_logs, get_logger
from stateless_broker.metrics.process_metrics import ProcessMetrics
from stateless_broker.process import admin_port, loop_factory, stop_signals, unless
from stateless_broker.reload import LiveSettings
from stateless_broker.settings import CompactionSettings
from stateless_broker.store_wait import when_store_answers

GARBAGE_EVERY_RUNS = 60
ROUNDS_MAX = 100
"""Of one bundle in one run: the others have their turn, too."""

log = get_logger(__name__)


def run_compactor(url: str, read_settings: Callable[[], CompactionSettings], on_ready: Callable[[], None]) -> None:
    """Until SIGTERM or SIGINT. Raises InvalidConfig, InvalidRequest (an engine that is not installed), Unauthorized, StoreUnusable, …"""
    settings = read_settings()
    configure_logs(settings.log_format, settings.log_level)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(url, settings, read_settings, on_ready))


async def _serve(url: str, settings: CompactionSettings, read: Callable[[], CompactionSettings], on_ready: Callable[[], None]) -> None:
    sources = Sources()
    health, metrics = Health(), ProcessMetrics(settings, url)

    def apply(changed: CompactionSettings) -> None:
        configure_logs(changed.log_format, changed.log_level, metrics.lines)
        metrics.apply(changed)

    live = LiveSettings(settings, read, apply)
    stopping = stop_signals(lambda: live.in_force)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, live.reload)
    apply(settings)
    async with admin_port(settings, health, metrics), await open_store(url, sources=sources, meter=metrics.store) as store:
        starting = asyncio.create_task(when_store_answers(lambda: _cluster(store), url, health, sources), name="start")
        cluster = await unless(stopping, starting)
        if cluster is None:
            return
        with find_engine(settings.compaction_engine)(sources) as engine:
            compactor = Compactor(store, cluster, sources, engine, metrics.owners)
            health.ready()
            on_ready()
            work = asyncio.create_task(compactor.run(lambda: live.in_force.compaction_interval_ms / 1000), name="compactor")
            await unless(stopping, work)
            health.drains()


async def _cluster(store: ObjectStore) -> ClusterSettings:
    try:
        return await read_cluster(store)
    except ObjectMissing as error:
        raise Unavailable("there is no cluster here yet; the first broker makes it") from error


class Compactor:
    """`metrics` hears of finished rounds and of what failed."""

    def __init__(self, store: ObjectStore, cluster: ClusterSettings, sources: Sources, engine: Engine, metrics: BundleMetrics) -> None:
        self._store = store
        self._cluster = cluster
        self._sources = sources
        self._engine = engine
        self._metrics = metrics
        self._known = SegmentIndexes()

    async def run(self, interval_s: Callable[[], float]) -> None:
        """Until cancelled; what is under way then is finished by whoever compacts next."""
        runs = 0
        while True:
            await self.run_once(collect=runs % GARBAGE_EVERY_RUNS == 0)
            runs += 1
            await asyncio.sleep(interval_s() * self._sources.random.uniform(0.9, 1.1))

    async def run_once(self, *, collect: bool) -> None:
        """All bundles in turn. One that cannot be compacted is told, and tried again in the next run."""
        try:
            catalog = await read_catalog(self._store, self._cluster.producer_states_max, self._known)
        except LedgerMQError as error:
            self._failed(0, error)
            return
        for bundle in range(self._cluster.bundles):
            try:
                for _ in range(ROUNDS_MAX):
                    report = await compact_bundle(
                        self._store, bundle, self._cluster, catalog, self._sources, self._engine, everything=False, known=self._known
                    )
                    if report is None:
                        break
                    self._metrics.compacted(report)
                    log.info("compacted", bundle=bundle, plan=report.plan, files=report.files, records=report.records)
                    for parked in report.parked:
                        log.error("parked", bundle=bundle, topic=parked.topic, partition=parked.partition, damaged=parked.object_key)
            except LedgerMQError as error:
                self._failed(bundle, error)
        if collect:
            await self._collect()

    async def _collect(self) -> None:
        try:
            collected = await collect_garbage(self._store, self._cluster)
            if collected:
                log.info("garbage collected", objects=len(collected))
        except LedgerMQError as error:
            log.warning("garbage not collected", error=error.message)

    def _failed(self, bundle: int, error: LedgerMQError) -> None:
        self._metrics.upkeep_failed(bundle, "compaction", error)
        log.warning("bundle not compacted", bundle=bundle, code=error.code, error=error.message)

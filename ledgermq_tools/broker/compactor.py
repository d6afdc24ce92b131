"""Run `ledgermq_ledger.rounds.service` as a process beside the brokers, with the signals, admin port,
settings and logs of a broker process.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from ledgermq.errors import LedgerMQError, Unavailable
from ledgermq.runtime.process.server_process import loop_factory
from ledgermq.sources import Sources
from ledgermq_broker.bundle.shared.context import BundleMetrics
from ledgermq_broker.health.readiness import Health
from ledgermq_broker.health.store_wait import when_store_answers
from ledgermq_broker.logs import configure_logs, get_logger
from ledgermq_broker.metrics.process_metrics import ProcessMetrics
from ledgermq_broker.ports.tls import followed_certificates
from ledgermq_broker.process.reload import LiveSettings
from ledgermq_broker.process.run import admin_port, stop_signals, unless
from ledgermq_broker.settings.processes import CompactionSettings
from ledgermq_ledger.cluster import ClusterSettings, check_cluster_id, read_cluster
from ledgermq_ledger.fsck.cluster_fit import check_fit
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.report import CleaningReport, Lag, MergeReport, ParkedFile, RoundReport
from ledgermq_ledger.root.open import open_store
from ledgermq_ledger.rounds.engines import find_engine
from ledgermq_ledger.rounds.service import CompactionService, ServiceEvents

log = get_logger(__name__)


def run_compactor(url: str, read_settings: Callable[[], CompactionSettings], on_ready: Callable[[], None]) -> None:
    """Run until SIGTERM or SIGINT.

    Raises InvalidConfig, InvalidRequest (an engine that is not installed), Unauthorized,
    StoreUnusable, …
    """
    settings = read_settings()
    configure_logs(settings.log_format, settings.log_level)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(url, settings, read_settings, on_ready))


async def _serve(
    url: str, settings: CompactionSettings, read: Callable[[], CompactionSettings], on_ready: Callable[[], None]
) -> None:
    sources = Sources()
    health, metrics = Health(), ProcessMetrics(url)

    def apply(changed: CompactionSettings) -> None:
        configure_logs(changed.log_format, changed.log_level, metrics.lines)

    live = LiveSettings(settings, read, apply)
    stopping = stop_signals(lambda: live.in_force)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, live.reload)
    apply(settings)
    async with (
        followed_certificates(settings, sources, metrics.tls) as certificates,
        admin_port(settings, health, metrics, certificates),
        await open_store(url, sources=sources, meter=metrics.store, mends=True) as store,
    ):
        starting = asyncio.create_task(
            when_store_answers(lambda: _cluster(store, settings), url, health, sources), name="start"
        )
        cluster = await unless(stopping, starting)
        if cluster is None:
            return
        with find_engine(settings.compaction_engine)(sources) as engine:
            compactor = CompactionService(store, cluster, sources, engine, LoggedEvents(metrics.owners))
            health.notes = list if certificates is None else certificates.problems
            health.ready()
            on_ready()
            work = asyncio.create_task(
                compactor.run(lambda: live.in_force.compaction_interval_ms / 1000), name="compactor"
            )
            stop = asyncio.create_task(_stop_when(stopping, compactor, live, health), name="stop")
            try:
                await work
            finally:
                stop.cancel()


async def _stop_when(
    stopping: asyncio.Event, compactor: CompactionService, live: LiveSettings[CompactionSettings], health: Health
) -> None:
    await stopping.wait()
    health.drains()
    compactor.stop(live.in_force.shutdown_ms / 1000)


async def _cluster(store: ObjectStore, settings: CompactionSettings) -> ClusterSettings:
    try:
        cluster = check_cluster_id(await read_cluster(store), settings.cluster_id, store.url)
    except ObjectMissing as error:
        raise Unavailable("there is no cluster at this root yet; the first broker creates it") from error
    await check_fit(store, cluster)
    return cluster


class LoggedEvents(ServiceEvents):
    """Log what the service did, and count finished rounds and failures in `metrics`."""

    def __init__(self, metrics: BundleMetrics) -> None:
        self._metrics = metrics

    def round_finished(self, report: RoundReport) -> None:
        self._metrics.compacted(report)
        log.info(
            "compacted",
            bundle=report.bundle,
            plan=report.plan,
            files=report.files,
            records=report.records,
            seconds=round(report.seconds, 3),
        )

    def partition_parked(self, bundle: int, parked: ParkedFile) -> None:
        log.error("parked", bundle=bundle, topic=parked.topic, partition=parked.partition, damaged=parked.object_key)

    def bundle_done(self, bundle: int, lag: Lag) -> None:
        log.info("left in segments", bundle=bundle, records=lag.records, bytes=lag.bytes, oldest_ms=lag.written_ms)

    def version_published(self, report: CleaningReport) -> None:
        log.info(
            "cleaned",
            bundle=report.bundle,
            topic=report.topic,
            partition=report.partition,
            version=report.number,
            end=report.end,
            records=report.records,
        )

    def merged(self, report: MergeReport) -> None:
        self._metrics.merged(report)
        log.info(
            "merged",
            bundle=report.bundle,
            topic=report.topic,
            partition=report.partition,
            files=report.files,
            bytes=report.source_bytes,
        )

    def bundle_failed(self, bundle: int, error: LedgerMQError) -> None:
        self._metrics.upkeep_failed(bundle, "compaction", error)
        log.warning("bundle not compacted", bundle=bundle, code=error.code, error=error.message)

    def garbage_collected(self, objects: int) -> None:
        log.info("garbage collected", objects=objects)

    def garbage_not_collected(self, error: LedgerMQError) -> None:
        log.warning("garbage not collected", error=error.message)

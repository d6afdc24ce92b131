"""Run the compaction service on a terminal: `ledgermq compact ROOT --every 30s`, and the Spark job
with `--every`.

After the first SIGTERM or SIGINT it finishes the rounds that are under way. A second signal ends
the process, and other processes finish them. `ledgermq compactor` is the same service as a process
with settings, logs, metrics and an admin port. It is no alias of this command: its options are
settings, it prints no lines, and a signal stops it within `shutdown_ms`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

from ledgermq.cli.arguments.options import OutputFormat
from ledgermq.cli.output.terminal import notes, progress_of_bytes, results
from ledgermq.durations import parse_duration_ms
from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.engine import Engine
from ledgermq_ledger.parquet.report import CleaningReport, Lag, MergeReport, ParkedFile, RoundReport
from ledgermq_ledger.rounds.service import CompactionService, ServiceEvents
from ledgermq_tools.ledger.compact.report import (
    ProgressOfRounds,
    cleaning_line,
    cleaning_row,
    lag_facts,
    lag_line,
    merge_line,
    round_line,
    round_row,
)

INTERVAL_MS_MIN = 100


def parse_interval_s(text: str) -> float:
    """Return the interval in seconds. Raises InvalidRequest."""
    return parse_duration_ms(text, "--every", INTERVAL_MS_MIN) / 1000


async def serve(
    store: ObjectStore,
    cluster: ClusterSettings,
    sources: Sources,
    engine: Engine,
    interval_s: float,
    output: OutputFormat,
    bundles: Sequence[int] | None = None,
) -> None:
    """Run until SIGTERM or SIGINT."""
    with progress_of_bytes() as bar:
        shown = ProgressOfRounds(bar)
        events = _Printed(output, sources, shown)
        service = CompactionService(store, cluster, sources, engine, events, bundles=bundles, on_progress=shown.show)
        asked: list[int] = []

        def stop(number: int) -> None:
            if asked:
                sys.exit(128 + number)
            asked.append(number)
            notes().print(
                f"{signal.Signals(number).name}: finishing the rounds under way; send it again to leave them to other"
                " processes"
            )
            service.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        notes().print(f"compaction service works on root {store.url}, a run every {interval_s:g} s")
        await service.run(lambda: interval_s)


class _Printed(ServiceEvents):
    """Print rounds and lags on stdout, a line each; problems on stderr."""

    def __init__(self, output: OutputFormat, sources: Sources, shown: ProgressOfRounds) -> None:
        self._output = output
        self._sources = sources
        self._shown = shown

    def round_finished(self, report: RoundReport) -> None:
        self._shown.forget(report.bundle, report.plan)
        self._print({"event": "round", **round_row(report)}, round_line(report))

    def partition_parked(self, bundle: int, parked: ParkedFile) -> None:
        notes().print(f"parked: {parked.topic}/{parked.partition}: {parked.object_key}: {parked.reason}", markup=False)

    def bundle_done(self, bundle: int, lag: Lag) -> None:
        now_ms = self._sources.now_ms()
        self._print({"event": "left", "bundle": bundle, **lag_facts(lag, now_ms)}, lag_line(bundle, lag, now_ms))

    def version_published(self, report: CleaningReport) -> None:
        self._print({"event": "cleaned", **cleaning_row(report)}, cleaning_line(report))

    def merged(self, report: MergeReport) -> None:
        self._print({"event": "merged", **asdict(report)}, merge_line(report))

    def bundle_failed(self, bundle: int, error: LedgerMQError) -> None:
        self._print({"event": "failed", "bundle": bundle, "code": error.code, "error": error.message}, "")
        notes().print(f"bundle {bundle} not compacted, will be retried: {error.code}: {error.message}", markup=False)

    def garbage_collected(self, objects: int) -> None:
        self._print({"event": "garbage", "objects": objects}, f"{objects} objects of garbage collected")

    def garbage_not_collected(self, error: LedgerMQError) -> None:
        notes().print(f"garbage not collected: {error.message}", markup=False)

    def _print(self, document: dict[str, object], line: str) -> None:
        text = json.dumps(document) if self._output is OutputFormat.JSON else line
        if text:
            results().print(text, markup=False, soft_wrap=True)
            sys.stdout.flush()

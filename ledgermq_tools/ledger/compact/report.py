"""Report compaction on a terminal and as JSON: one round, a whole run, and its progress.

The Spark job prints the same.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.progress import Progress as ProgressBar
from rich.progress import TaskID

from ledgermq.cli.output.report import Finding, Report, Rows
from ledgermq_ledger.parquet.report import CleaningReport, CompactionReport, Lag, MergeReport, Progress, RoundReport

CLEANING_COLUMNS = ("topic", "partition", "number", "end", "read", "records", "dirty_bytes", "stored_bytes")
ROUND_COLUMNS = ("bundle", "plan", "files", "records", "segment_bytes", "parquet_bytes", "seconds")


class ProgressOfRounds:
    """Show one bar per round, because the size of a round is known only when it begins."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._tasks: dict[tuple[int, int], TaskID] = {}

    def show(self, progress: Progress) -> None:
        key = (progress.bundle, progress.plan)
        if key not in self._tasks:
            self._tasks[key] = self._bar.add_task(
                f"bundle {progress.bundle}, plan {progress.plan}", total=progress.source_bytes_total, note=""
            )
        note = f"{progress.files_done} of {progress.files_total} files, {progress.records_done:,} records"
        self._bar.update(
            self._tasks[key], completed=progress.source_bytes_done, total=progress.source_bytes_total, note=note
        )

    def forget(self, bundle: int, plan: int) -> None:
        """Remove the bar of a finished round: a service has no room for all of them."""
        task = self._tasks.pop((bundle, plan), None)
        if task is not None:
            self._bar.remove_task(task)


def progress_line(progress: Progress) -> str:
    """Where there is no terminal to draw on, as in the log of a Spark job."""
    return (
        f"bundle {progress.bundle} plan {progress.plan}: {progress.files_done} of {progress.files_total} files, "
        f"{progress.records_done} of {progress.records_total} records"
    )


def round_row(r: RoundReport) -> dict[str, Any]:
    return {
        "bundle": r.bundle,
        "plan": r.plan,
        "files": r.files,
        "records": r.records,
        "segment_bytes": r.source_bytes,
        "parquet_bytes": r.stored_bytes,
        "seconds": round(r.seconds, 3),
        "parked": [f"{parked.topic}-{parked.partition}: {parked.object_key}: {parked.reason}" for parked in r.parked],
    }


def round_line(r: RoundReport) -> str:
    rate = f", {r.source_bytes / 1e6 / r.seconds:.1f} MB/s" if r.seconds else ""
    return (
        f"bundle {r.bundle} plan {r.plan}: {r.records:,} records in {r.files} files, {r.source_bytes:,} bytes of"
        f" segments became {r.stored_bytes:,} of Parquet, {r.seconds:.2f} s{rate}"
    )


def cleaning_row(r: CleaningReport) -> dict[str, Any]:
    return asdict(r)


def cleaning_line(r: CleaningReport) -> str:
    return (
        f"bundle {r.bundle} {r.topic}/{r.partition}: version {r.number} holds the latest record of each key below"
        f" offset {r.end}: {r.records:,} of {r.read:,} records, {r.stored_bytes:,} bytes"
    )


def merge_line(r: MergeReport) -> str:
    return (
        f"bundle {r.bundle} {r.topic}/{r.partition}: {r.files} small files, {r.source_bytes:,} bytes, have a merged"
        f" one of {r.stored_bytes:,} bytes"
    )


def lag_facts(lag: Lag, now_ms: int) -> dict[str, Any]:
    """Return the remaining lag as flat facts."""
    return {
        "records_left": lag.records,
        "segment_bytes_left": lag.bytes,
        "oldest_left_s": round(max(0, now_ms - lag.written_ms) / 1000, 1) if lag.written_ms is not None else None,
    }


def lag_line(bundle: int, lag: Lag, now_ms: int) -> str:
    facts = lag_facts(lag, now_ms)
    oldest = f", the oldest written {facts['oldest_left_s']} s ago" if lag.records else ""
    return f"bundle {bundle}: {lag.records:,} records, {lag.bytes:,} bytes left in segments{oldest}"


def compaction_report(done: CompactionReport, engine: str, seconds: float, now_ms: int) -> Report:
    """Return the report. `seconds`: duration of the compaction alone, without the engine's start."""
    facts = {
        "engine": engine,
        "seconds": round(seconds, 3),
        "rounds": len(done.rounds),
        "files": done.files,
        "records": done.records,
        "segment_bytes": done.source_bytes,
        "parquet_bytes": done.stored_bytes,
        "megabytes_per_s": round(done.source_bytes / 1e6 / seconds, 1) if seconds else None,
        **lag_facts(done.lag_in_all, now_ms),
    }
    if done.merged:
        facts["small_files_merged"] = sum(report.files for report in done.merged)
    if done.cleaned:
        facts["versions_of_keyed_topics"] = len(done.cleaned)
    rows = [round_row(r) for r in done.rounds]
    findings = [
        Finding(error.object_key or f"bundle {bundle}", error.code, error.message)
        for bundle, error in sorted(done.failures.items())
    ] + [
        Finding(parked.object_key, "PARKED", f"{parked.topic}/{parked.partition}: {parked.reason}")
        for parked in done.parked
    ]
    for error in done.not_collected:
        left = Finding(error.object_key or "garbage", error.code, error.message)
        findings += [left] if left not in findings else []
    parts = [Rows("round_list", ROUND_COLUMNS, rows)] if rows else []
    if done.cleaned:
        parts.append(Rows("version_list", CLEANING_COLUMNS, [cleaning_row(r) for r in done.cleaned]))
    return Report("Parquet compaction", facts, parts, findings)

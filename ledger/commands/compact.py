"""`ledgermq compact ROOT`: one run of Parquet compaction by hand, over all that the root holds now."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.progress import Progress as ProgressBar
from rich.progress import TaskID

from ledger.commands.engines import find_engine
from ledger.commands.root import Root, cluster_of, opened
from ledger.parquet.report import CompactionReport, Progress
from ledgermq.cli.exit_codes import exit_code
from ledgermq.cli.options import Debug, Output, OutputFormat
from ledgermq.cli.report import Finding, Report, Rows, show
from ledgermq.cli.reporting import command
from ledgermq.cli.terminal import progress_of_bytes
from ledgermq.errors import InvalidRequest
from ledgermq.sources import Sources

EngineName = Annotated[str, typer.Option("--engine", "-e", help="Where the tasks run: spark, or local (this process).")]
Bundles = Annotated[list[int] | None, typer.Option("--bundle", "-b", min=0, help="Only this bundle; repeatable.")]

ROUND_COLUMNS = ("bundle", "plan", "files", "records", "segment_bytes", "parquet_bytes")


def register(app: typer.Typer) -> None:
    command(app, "compact")(compact)


async def compact(
    root: Root, engine: EngineName = "local", bundle: Bundles = None, output: Output = OutputFormat.TABLE, debug: Debug = False
) -> None:
    """Turn segments into Parquet files: all that is there now, whatever the lag settings. Brokers may go on meanwhile."""
    from ledger.parquet.runner import compact_root  # late: every command of the application loads this module

    sources = Sources()
    open_engine = find_engine(engine)
    async with opened(root, sources) as store:
        cluster = await cluster_of(store)
        if wrong := [number for number in bundle or () if number >= cluster.bundles]:
            raise InvalidRequest(f"bundle {wrong[0]}: this cluster has bundles 0 to {cluster.bundles - 1}")
        with open_engine(sources) as running, progress_of_bytes() as bar:
            started = asyncio.get_running_loop().time()
            done = await compact_root(store, sources, running, bundles=bundle, on_progress=ProgressOfRounds(bar).show)
            seconds = asyncio.get_running_loop().time() - started
    show(compaction_report(done, engine, seconds), output)
    if done.failures:
        raise typer.Exit(exit_code(next(iter(done.failures.values()))))


class ProgressOfRounds:
    """One bar a round, because what a round holds is known only when it begins."""

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
        self._bar.update(self._tasks[key], completed=progress.source_bytes_done, total=progress.source_bytes_total, note=note)


def compaction_report(done: CompactionReport, engine: str, seconds: float) -> Report:
    """`seconds`: of the compaction alone, without the engine's start."""
    facts = {
        "engine": engine,
        "seconds": round(seconds, 3),
        "rounds": len(done.rounds),
        "files": done.files,
        "records": done.records,
        "segment_bytes": done.source_bytes,
        "parquet_bytes": done.stored_bytes,
        "megabytes_per_s": round(done.source_bytes / 1e6 / seconds, 1) if seconds else None,
    }
    rows = [
        {
            "bundle": r.bundle,
            "plan": r.plan,
            "files": r.files,
            "records": r.records,
            "segment_bytes": r.source_bytes,
            "parquet_bytes": r.stored_bytes,
        }
        for r in done.rounds
    ]
    findings = [
        Finding(error.object_key or f"bundle {bundle}", error.code, error.message) for bundle, error in sorted(done.failures.items())
    ] + [Finding(parked.object_key, "PARKED", f"{parked.topic}-{parked.partition}: {parked.reason}") for parked in done.parked]
    return Report("Parquet compaction", facts, [Rows("round_list", ROUND_COLUMNS, rows)] if rows else [], findings)

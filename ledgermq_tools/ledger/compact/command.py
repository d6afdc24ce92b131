"""Run `ledgermq compact ROOT`: Parquet compaction of everything that the root holds now, or as a
service with `--every`.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from ledgermq.cli.arguments.options import Output, OutputFormat
from ledgermq.cli.output.exit_codes import exit_code
from ledgermq.cli.output.report import show
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import progress_of_bytes
from ledgermq.sources import Sources
from ledgermq_ledger.open_root import check_bundles, fitting_cluster_of, opened
from ledgermq_ledger.rounds.engines import find_engine
from ledgermq_tools.ledger.compact.report import ProgressOfRounds, compaction_report
from ledgermq_tools.ledger.root import Root

EngineName = Annotated[str, typer.Option("--engine", "-e", help="Where the tasks run: spark, or local (this process).")]
Bundles = Annotated[
    list[int] | None, typer.Option("--bundle", "-b", min=0, help="Compact only this bundle; repeatable.")
]
Every = Annotated[
    str | None,
    typer.Option(
        "--every",
        metavar="INTERVAL",
        help=(
            "Run as a service, by the topics' size and lag settings, with a run every 30s, 5m, …, until SIGTERM or"
            " Ctrl-C."
        ),
    ),
]


def register(app: typer.Typer) -> None:
    command(app, "compact")(compact)


async def compact(
    root: Root,
    engine: EngineName = "local",
    bundle: Bundles = None,
    every: Every = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write all records that are in segments now to Parquet files, whatever the lag settings.

    Brokers and other compactors may run meanwhile.
    """
    from ledgermq_ledger.rounds.runner import compact_root
    from ledgermq_tools.ledger.compact.service import (
        parse_interval_s,
        serve,
    )  # late: every command of the application loads this module

    sources = Sources()
    interval_s = parse_interval_s(every) if every is not None else None
    open_engine = find_engine(engine)
    async with opened(root, sources) as store:
        cluster = await fitting_cluster_of(store)
        await check_bundles(store, cluster, bundle)
        with open_engine(sources) as running:
            if interval_s is not None:
                await serve(store, cluster, sources, running, interval_s, output, bundle or None)
                return
            with progress_of_bytes() as bar:
                started = asyncio.get_running_loop().time()
                done = await compact_root(
                    store, sources, running, bundles=bundle, on_progress=ProgressOfRounds(bar).show
                )
                seconds = asyncio.get_running_loop().time() - started
    show(compaction_report(done, engine, seconds, sources.now_ms()), output)
    if done.failures:
        raise typer.Exit(exit_code(next(iter(done.failures.values()))))

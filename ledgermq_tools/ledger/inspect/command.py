"""`ledgermq inspect …`: show what a root holds, without a broker and without changing anything.

Exit code 6 if something is damaged.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ledgermq.cli.arguments.options import Output, OutputFormat
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.cli.output.report import Report, show
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import progress_of_items
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.open_root import check_bundles, cluster_of, opened
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_tools.ledger.inspect.checkpoint_report import checkpoint_report
from ledgermq_tools.ledger.inspect.cluster_report import cluster_report
from ledgermq_tools.ledger.inspect.findings import Findings
from ledgermq_tools.ledger.inspect.ledger_report import ledger_report, view_ledger
from ledgermq_tools.ledger.inspect.segment_report import segment_report
from ledgermq_tools.ledger.inspect.topics.queues_report import shares_report
from ledgermq_tools.ledger.inspect.topics.timed_report import timers_report
from ledgermq_tools.ledger.inspect.topics.transactions_report import transactions_report
from ledgermq_tools.ledger.root import Bundle, Root

NUMBER_MAX = 2**63 - 1

Full = Annotated[
    bool, typer.Option("--full", help="Read every segment whole and check every batch, not only the indexes.")
]
Slot = Annotated[
    int, typer.Argument(min=1, max=NUMBER_MAX, metavar="SLOT", help="Number of the segment in its ledger.")
]
Number = Annotated[
    int | None,
    typer.Argument(min=1, max=NUMBER_MAX, metavar="NUMBER", help="Number of the checkpoint; default: the newest."),
]
Newest = Annotated[
    int, typer.Option("--newest", min=0, help="How many segments to list, counted from the end; 0 = all.")
]

All = Annotated[bool, typer.Option("--all", "-a", help="Every transactional id, also those with nothing open.")]
Blocks = Annotated[
    bool, typer.Option("--all", "-a", help="Also each recall, and the header of each block that is in a segment.")
]

Messages = Annotated[
    bool,
    typer.Option("--all", "-a", help="Also what is known of messages, from the first one on that is not finished."),
]


def register(app: typer.Typer) -> None:
    inspect = typer.Typer(no_args_is_help=True)
    app.add_typer(
        inspect,
        name="inspect",
        help="Show and check what a root holds: segments, ledgers, checkpoints, transactions, timed messages,"
        " queues, the whole cluster.",
    )
    for report in (segment, ledger, checkpoint, cluster, transactions, timers, queues):
        command(inspect, report.__name__)(report)


async def segment(root: Root, bundle: Bundle, slot: Slot, output: Output = OutputFormat.TABLE) -> None:
    """Show one segment: its index and all its batches, with checksums checked and batches
    decoded.
    """
    sources = Sources()
    async with opened(root, sources) as store:
        finish(await segment_report(store, bundle, slot, await topic_names(store, sources)), output)


async def ledger(
    root: Root,
    bundle: Bundle,
    newest: Newest = 20,
    full: Full = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the segments of one bundle: which are valid, which process wrote them, what is
    damaged.
    """
    findings, sources = Findings(), Sources()
    async with opened(root, sources) as store:
        cluster = await cluster_of(store)
        await check_bundles(store, cluster, [bundle])
        view = await view_ledger(LedgerRef(store, bundle, cluster, sources), findings, full=full)
    finish(ledger_report(view, findings, newest=newest), output)


async def checkpoint(root: Root, bundle: Bundle, number: Number = None, output: Output = OutputFormat.TABLE) -> None:
    """Show one checkpoint of a bundle, from which recovery begins."""
    async with opened(root, Sources()) as store:
        await cluster_of(store)
        finish(await checkpoint_report(store, bundle, number), output)


async def cluster(root: Root, full: Full = False, output: Output = OutputFormat.TABLE) -> None:
    """Show everything that a root holds: brokers, bundles, topics, Parquet files, and all
    damage.
    """
    sources = Sources()
    async with opened(root, sources) as store:
        with progress_of_items() as progress:
            task = progress.add_task("Reading bundles", total=None, note="")
            report = await cluster_report(
                store, sources, full=full, on_bundle=lambda n, of: progress.update(task, completed=n, total=of)
            )
    finish(report, output)


async def transactions(root: Root, every: All = False, output: Output = OutputFormat.TABLE) -> None:
    """Show the transactions that are prepared or not complete, and everything that is staged:
    invisible until it is committed.
    """
    sources = Sources()
    async with opened(root, sources) as store:
        finish(await transactions_report(store, sources, every=every), output)


async def timers(root: Root, every: Blocks = False, output: Output = OutputFormat.TABLE) -> None:
    """Show the timed messages that wait: how far delivery has come, and in which range of due times
    the others are.
    """
    sources = Sources()
    async with opened(root, sources) as store:
        finish(await timers_report(store, sources, every=every), output)


async def queues(root: Root, every: Messages = False, output: Output = OutputFormat.TABLE) -> None:
    """Show the queue groups: how far each has come in its partitions, and what waits. Leases are in the
    memory of brokers: `ledgermq queue describe` shows them.
    """
    sources = Sources()
    async with opened(root, sources) as store:
        finish(await shares_report(store, sources, every=every), output)


async def topic_names(store: ObjectStore, sources: Sources) -> dict[int, str]:
    """Return the topics by id; none if the catalog cannot be read, as in a damaged root."""
    findings, catalog = Findings(), Catalog()
    with findings.collecting(keys.ledger(keys.METADATA_BUNDLE)):
        catalog = await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, await cluster_of(store), sources))
    return {topic.id: topic.name for topic in catalog.topics_by_id.values()}


def finish(report: Report, output: OutputFormat) -> None:
    """Show the report; with findings, end with their exit code."""
    show(report, output)
    if report.findings:
        raise typer.Exit(ExitCode.DAMAGED)

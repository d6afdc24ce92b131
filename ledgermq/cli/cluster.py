"""`ledgermq cluster …`: show the bundles of the cluster, and add some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

import ledgermq
from ledgermq.cli.exit_codes import EPILOG
from ledgermq.cli.options import DEFAULT_TARGET, DEFAULT_TIMEOUT_S, Debug, Output, OutputFormat, Target, Timeout
from ledgermq.cli.report import Report, Rows, show
from ledgermq.cli.reporting import command
from ledgermq.cli.session import connected

Count = Annotated[int, typer.Argument(metavar="N", min=1, help="How many bundles more the cluster shall have.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check, and show what would be changed.")]
BUNDLE_COLUMNS = ("bundle", "owner", "epoch", "partitions", "load", "trouble")


def register(app: typer.Typer) -> None:
    cluster = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(cluster, name="cluster", help="Show the bundles of the cluster, and add some.")
    command(cluster, "describe")(describe)
    command(cluster, "add-bundles")(add_bundles)


async def describe(
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
) -> None:
    """Show the bundles of the cluster: the owner of each, and how many partitions of topics it holds. Topics
    of the system, and those that you may not see, are not counted. Load: bytes produced and fetched in a
    second, each request counted as 64 KiB; 0 if it is idle.
    """
    async with connected(target, timeout_s) as client:
        report = cluster_report(await client.describe_cluster(), await client.list_topics())
    show(report, output)


def cluster_report(cluster: ledgermq.ClusterDescription, topics: Sequence[ledgermq.TopicDescription]) -> Report:
    held = Counter(partition.bundle for topic in topics for partition in topic.partitions)
    facts = {
        "root": cluster.root,
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller,
        "brokers": sum(broker.alive for broker in cluster.brokers),
        "bundles": len(cluster.bundles),
        "topics": len(topics),
        "partitions": held.total(),
    }
    rows = [
        {
            "bundle": b.bundle,
            "owner": b.owner,
            "epoch": b.epoch,
            "partitions": held[b.bundle],
            "load": b.load,
            "trouble": b.trouble,
        }
        for b in cluster.bundles
    ]
    columns = BUNDLE_COLUMNS if any(bundle.trouble for bundle in cluster.bundles) else BUNDLE_COLUMNS[:-1]
    return Report("", facts, [Rows("bundles", columns, rows)])


async def add_bundles(
    count: Count,
    target: Target = DEFAULT_TARGET,
    dry_run: DryRun = False,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
) -> None:
    """Let the cluster have N bundles more, so that more brokers can share its work. Nothing is restarted.

    Brokers take the new bundles within seconds. Partitions of new topics, and those that `ledgermq topic
    alter --partitions` adds, go to the emptiest bundles; partitions that exist stay where they are. The
    number never becomes less. Every broker, and every compactor and Spark job on this root, has to run a
    release that knows added bundles.
    """
    async with connected(target, timeout_s) as client:
        added = await client.add_bundles(count, dry_run=dry_run)
    facts = {"dry_run": dry_run, "bundles_before": added.before, "bundles": added.after}
    show(Report("", facts, []), output)

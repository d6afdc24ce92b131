"""`ledgermq cluster …`: show the bundles of the cluster, add some, and move partitions between them."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

import ledgermq
from ledgermq.cli.admin.rebalance import rebalance
from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    AnswerTimeout,
    Output,
    OutputFormat,
    Target,
    Timeout,
)
from ledgermq.cli.output.exit_codes import EPILOG
from ledgermq.cli.output.report import Report, Rows, show
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import progress_of_items
from ledgermq.cli.session import Session, connected, connected_session
from ledgermq.client.admin.rebalancing import SLOW_S, Tell, slow_move
from ledgermq.client.messages.descriptions import TopicPartition

Count = Annotated[int, typer.Argument(metavar="N", min=1, help="How many bundles more the cluster shall have.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check, and show what would be changed.")]
PartitionNumber = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="The number of the partition.")]
Bundle = Annotated[int, typer.Argument(metavar="BUNDLE", min=1, help="The bundle that it moves to.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return when the move is decided.")]
LOOK_S = 0.5
"""Pause between two looks how far a move is."""
BUNDLE_COLUMNS = ("bundle", "owner", "epoch", "partitions", "load", "trouble")


def register(app: typer.Typer) -> None:
    cluster = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(cluster, name="cluster", help="Show the bundles of the cluster, add some, move partitions.")
    command(cluster, "describe")(describe)
    command(cluster, "add-bundles")(add_bundles)
    command(cluster, "move")(move)
    command(cluster, "rebalance")(rebalance)


async def describe(
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
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
) -> None:
    """Let the cluster have N bundles more, so that more brokers can share its work. Nothing is restarted.

    Brokers take the new bundles within seconds. Partitions of new topics, and those that `ledgermq topic
    alter --partitions` adds, go to the emptiest bundles; partitions that exist stay where they are. The
    number never becomes less. Of two commands at the same time each adds its own number. Every broker, and
    every compactor and Spark job on this root, has to run a release that knows added bundles.
    """
    async with connected(target, timeout_s) as client:
        added = await client.add_bundles(count, dry_run=dry_run)
    facts = {"dry_run": dry_run, "bundles_before": added.before, "added": added.added, "bundles": added.after}
    show(Report("", facts, []), output)


async def move(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic of the partition.")],
    partition: PartitionNumber,
    bundle: Bundle,
    target: Target = DEFAULT_TARGET,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    output: Output = OutputFormat.TABLE,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Move a partition to another bundle, while it is written and read. Programs notice nothing.

    Producers write to the new bundle at once; its files follow when what the old one holds of the partition
    has become Parquet, which the command waits for. Ctrl-C ends only the wait. A partition moves when nothing
    keeps it: no open transaction, no timed message of its topic, no exclusive producer. Queue groups go along;
    what is leased at that moment is delivered again. From the first move on every broker, compactor and Spark
    job on this root has to run a release that knows moved partitions.
    """
    async with connected_session(target, timeout_s) as session:
        before = await session.client.describe_topic(topic)
        await session.client.move_partition(topic, partition, bundle, dry_run=dry_run)
        if not dry_run and not no_wait:
            await _until_moved(session, topic, partition)
    facts = {
        "topic": topic,
        "partition": partition,
        "dry_run": dry_run,
        "bundle_before": before.partitions[partition].bundle,
        "bundle": bundle,
    }
    show(Report("", facts, []), output)


async def _until_moved(session: Session, topic: str, partition: int) -> None:
    """Wait until a partition has left its old bundle, as long as brokers answer."""
    answers = 0
    session.progress = lambda: answers
    with progress_of_items() as bar:
        shown = bar.add_task(f"{topic}/{partition} moves", total=None, note="")

        def moves(source: int) -> None:
            nonlocal answers
            answers += 1
            bar.update(shown, note=f"the files of bundle {source} are to be handed over")

        def tell(line: str) -> None:
            bar.console.print(line, markup=False, soft_wrap=True)

        await until_moved(session.client, TopicPartition(topic, partition), tell, moves)


async def until_moved(client: ledgermq.Client, at: TopicPartition, tell: Tell, moves: Callable[[int], None]) -> None:
    """Wait until a partition has left its old bundle. Print once what a slow move waits for. `moves` is called with
    the bundle that it leaves after each look that finds it there.
    """
    now = asyncio.get_running_loop().time
    slow_s = now() + SLOW_S
    while (source := (await client.describe_topic(at.topic)).partitions[at.partition].moving_from) is not None:
        moves(source)
        if now() >= slow_s:
            slow_s = math.inf
            tell(slow_move(at, source))
        await asyncio.sleep(LOOK_S)

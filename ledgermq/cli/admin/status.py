"""`ledgermq status`: report the cluster's health, its brokers, and its bundles with their owners.
`ledgermq drain` and `undrain`: take a broker's bundles away, and let it take some again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, NamedTuple

import typer

import ledgermq
from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    Output,
    OutputFormat,
    Target,
    Timeout,
)
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.cli.output.report import Report, Rows, show, show_rows
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import notes
from ledgermq.cli.session import connected
from ledgermq.client.connection.target import is_root_url

OWN_BROKER_S = 5.0
DRAIN_TIMEOUT_S = 120.0

FUTURE_AFTER = timedelta(hours=1)
FUTURE_PARTITIONS_MAX = 1000
FUTURE_WAIT_S = 5.0
AHEAD = (
    "its timestamp is of the future, and keeps all older records from retention.ms and from cleaning until then;"
    " see docs/retention.md"
)


class FutureRecord(NamedTuple):
    """The first record of a partition whose timestamp is of the future."""

    topic: str
    partition: int
    offset: int


Broker = Annotated[
    str, typer.Argument(metavar="BROKER", help="Address or id of the broker, as `ledgermq status` shows them.")
]


CONNECTION_COLUMNS = ("principal", "address", "client", "client_id", "produces", "reads", "calls_now", "last_s_ago")


def register(app: typer.Typer) -> None:
    command(app, "status")(status)
    command(app, "connections")(connections)
    command(app, "drain")(drain)
    command(app, "undrain")(undrain)


async def connections(
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show who is connected: each caller, with its client's name and version, and the topics that it writes and reads.
    A caller is listed for five minutes after its last call. Needs the operation cluster.
    """
    async with connected(target, timeout_s) as client:
        found = await client.list_connections()
    now = datetime.now(UTC)
    rows = [
        {
            "principal": each.principal,
            "address": each.address,
            "client": each.client,
            "client_id": each.client_id,
            "produces": list(each.produces),
            "reads": list(each.reads),
            "calls": each.calls,
            "calls_now": each.calls_now,
            "last_s_ago": round(max(0.0, (now - each.last).total_seconds())),
            "since": each.since,
            "broker": each.broker,
        }
        for each in found
    ]
    show_rows(Rows("connections", CONNECTION_COLUMNS, rows), output, "Nothing is connected.")


async def status(
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show brokers, bundles and their owners, and the cluster's health. The exit code is 3 when it
    is not healthy: `problems` says why, and what to do.
    """
    async with connected(target, timeout_s) as client:
        cluster = await client.describe_cluster()
        if is_root_url(target):  # an embedded broker has just started: wait a moment until it has taken its bundles
            until = asyncio.get_running_loop().time() + OWN_BROKER_S
            while cluster.problems and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(0.1)
                cluster = await client.describe_cluster()
        topics, deleted = await client.list_topics(), await client.list_topics(deleted=True)
        future: list[FutureRecord] = []
        if not cluster.problems:  # the owners of all partitions answer
            future = await future_records(client, topics, datetime.now(UTC), min(timeout_s, FUTURE_WAIT_S))
    report = status_report(cluster, len(topics), future, deleted=len(deleted))
    show(report, output)
    if report.facts["health"] == "trouble":
        raise typer.Exit(ExitCode.UNAVAILABLE)


def _believes_timestamps(topic: ledgermq.TopicDescription) -> bool:
    """Return True if a record of the future keeps older records of its partition."""
    settings = topic.settings
    return "compact" in settings.get("cleanup.policy", "") or int(settings.get("retention.ms", "-1")) >= 0


async def future_records(
    client: ledgermq.Client, topics: Sequence[ledgermq.TopicDescription], now: datetime, timeout_s: float
) -> list[FutureRecord]:
    """Return partitions with a record from after the next hour, which stops retention by age and the cleaning of
    keys until then. Looks at topics that have one of both, at most at `FUTURE_PARTITIONS_MAX` partitions.
    """
    found: list[FutureRecord] = []
    left = FUTURE_PARTITIONS_MAX
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            for topic in filter(_believes_timestamps, topics):
                left -= len(topic.partitions)
                if left < 0:
                    break
                with suppress(ledgermq.errors.LedgerMQError):  # a bundle has no owner: the report says so
                    ends = await client.list_offsets(topic.name)
                    ahead = await client.list_offsets(topic.name, now + FUTURE_AFTER)
                    found += [
                        FutureRecord(topic.name, partition, offset)
                        for partition, offset in ahead.items()
                        if offset < ends.get(partition, 0)
                    ]
    return found


def status_report(
    cluster: ledgermq.ClusterDescription, topics: int, future: Sequence[FutureRecord] = (), *, deleted: int = 0
) -> Report:
    """Return the report. `deleted`: topics that are deleted and can be brought back."""
    troubled = [bundle for bundle in cluster.bundles if bundle.trouble]
    facts = {
        "health": "trouble" if cluster.problems else "ok",
        "root": cluster.root,
        "cluster_id": cluster.cluster_id,
        "version": cluster.version,
        "controller": cluster.controller,
        "topics": topics,
        "deleted_topics": deleted,
    }
    owned = {
        broker.address: sum(bundle.owner == broker.address for bundle in cluster.bundles) for broker in cluster.brokers
    }
    brokers = [
        {
            "broker": b.id,
            "address": b.address,
            "alive": b.alive,
            "owned_bundles": owned[b.address],
            "draining": b.draining,
        }
        for b in cluster.brokers
    ]
    bundles = [{"bundle": b.bundle, "owner": b.owner, "epoch": b.epoch, "trouble": b.trouble} for b in cluster.bundles]
    columns_of_brokers: tuple[str, ...] = ("broker", "address", "alive", "owned_bundles")
    if any(broker.draining for broker in cluster.brokers):
        columns_of_brokers += ("draining",)
    columns = ("bundle", "owner", "epoch", "trouble") if troubled else ("bundle", "owner", "epoch")
    problems = Rows("problems", ("problem",), [{"problem": problem} for problem in cluster.problems], if_any=True)
    tables = [
        problems,
        Rows("brokers", columns_of_brokers, brokers),
        Rows("bundles", columns, bundles),
    ]
    ahead = [
        {"topic": each.topic, "partition": each.partition, "offset": each.offset, "problem": AHEAD} for each in future
    ]
    tables.append(Rows("future_records", ("topic", "partition", "offset", "problem"), ahead, if_any=True))
    return Report("", facts, tables)


async def drain(broker: Broker, target: Target = DEFAULT_TARGET, timeout_s: Timeout = DRAIN_TIMEOUT_S) -> None:
    """Let a broker hand over everything that it owns, and take nothing new. Its process goes on.

    Programs continue at the other brokers. The command returns when the broker owns nothing: its
    machine can then be taken out. The drain ends with `ledgermq undrain`, or when the broker starts
    again.
    """
    async with connected(target, timeout_s) as client:
        await client.drain_broker(broker)
    notes().print(f"{broker} owns nothing now. `ledgermq undrain {broker}` lets it take bundles again.", markup=False)


async def undrain(broker: Broker, target: Target = DEFAULT_TARGET, timeout_s: Timeout = DRAIN_TIMEOUT_S) -> None:
    """Let a drained broker take its share of the bundles again."""
    async with connected(target, timeout_s) as client:
        await client.undrain_broker(broker)
    notes().print(f"{broker} takes its share of the bundles within seconds.", markup=False)

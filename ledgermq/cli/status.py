"""`ledgermq status`: report the cluster's health, its brokers, and its bundles with their owners."""

from __future__ import annotations

import asyncio

import typer

import ledgermq
from ledgermq.cli.exit_codes import ExitCode
from ledgermq.cli.options import DEFAULT_TARGET, DEFAULT_TIMEOUT_S, Debug, Output, OutputFormat, Target, Timeout
from ledgermq.cli.report import Report, Rows, show
from ledgermq.cli.reporting import command
from ledgermq.cli.session import connected
from ledgermq.client.target import is_root_url

OWN_BROKER_S = 5.0


def register(app: typer.Typer) -> None:
    command(app, "status")(status)


async def status(
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
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
        topics = await client.list_topics()
    report = status_report(cluster, len(topics))
    show(report, output)
    if report.facts["health"] == "trouble":
        raise typer.Exit(ExitCode.UNAVAILABLE)


def status_report(cluster: ledgermq.ClusterDescription, topics: int) -> Report:
    troubled = [bundle for bundle in cluster.bundles if bundle.trouble]
    facts = {
        "health": "trouble" if cluster.problems else "ok",
        "root": cluster.root,
        "cluster_id": cluster.cluster_id,
        "version": cluster.version,
        "controller": cluster.controller,
        "topics": topics,
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
    return Report("", facts, tables)

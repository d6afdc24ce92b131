"""`ledgermq cost`: show what requests to the store cost, by topic and principal."""

from __future__ import annotations

from typing import Annotated

import typer

from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    Output,
    OutputFormat,
    Target,
    Timeout,
)
from ledgermq.cli.output.report import Report, Rows, show
from ledgermq.cli.output.reporting import command
from ledgermq.cli.session import connected

OnlyTopic = Annotated[str, typer.Option("--topic", "-t", help="Only this topic.", show_default=False)]
COSTS = ("topic", "principal", "dollars", "write_dollars", "read_dollars")
TRAFFIC = ("rack", "bytes_in", "bytes_out")
KEPT = ("topic", "size_bytes", "dollars_month", "partitions_unknown")


def register(app: typer.Typer) -> None:
    command(app, "cost")(cost)


async def cost(
    topic: OnlyTopic = "",
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show what requests to the store have cost since the brokers started, by topic and principal, and what the bytes
    that topics keep cost in a month. Prices are settings of the brokers (`price_…`). Needs the operation cluster.

    A PUT of a segment is paid by the topics in it, by their bytes. (cluster): requests for no topic. `traffic`: bytes
    of clients in the rack of their broker, in others, and of those where the program or the broker has no `rack`.
    """
    async with connected(target, timeout_s) as client:
        found = await client.describe_costs(topic)
    costs = [
        {
            "topic": each.topic,
            "principal": each.principal,
            "dollars": shown(each.dollars),
            "write_dollars": shown(each.write_dollars),
            "read_dollars": shown(each.read_dollars),
        }
        for each in found.costs
    ]
    kept = [
        {
            "topic": each.topic,
            "size_bytes": each.size_bytes,
            "dollars_month": shown(each.dollars_month),
            "partitions_unknown": each.partitions_unknown,
        }
        for each in found.kept
    ]
    traffic = [{"rack": each.rack, "bytes_in": each.bytes_in, "bytes_out": each.bytes_out} for each in found.traffic]
    tables = [
        Rows("costs", COSTS, costs),
        Rows("kept", KEPT, kept, if_any=True),
        Rows("traffic", TRAFFIC, traffic, if_any=True),
    ]
    facts = {
        "since": found.since.isoformat(timespec="seconds"),
        "brokers": found.brokers,
        "dollars": shown(found.dollars),
    }
    show(Report("", facts, tables), output)


def shown(dollars: float) -> float:
    """Return dollars with six digits that count; a single request costs millionths."""
    return float(f"{dollars:.6g}")

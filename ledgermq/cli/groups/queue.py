"""`ledgermq queue …`: list, describe, reset and delete queue groups."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from ledgermq.cli.arguments.completion import complete_queue, complete_topic
from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    Output,
    OutputFormat,
    Target,
    Timeout,
    Yes,
)
from ledgermq.cli.arguments.start import parse_start
from ledgermq.cli.output.exit_codes import EPILOG
from ledgermq.cli.output.report import Report, Rows, show, show_rows
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import confirm, notes
from ledgermq.cli.session import connected
from ledgermq.errors import InvalidRequest

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the queue group.", autocompletion=complete_queue)]
Topic = Annotated[
    str,
    typer.Option("--topic", help="The topic that the group reads.", autocompletion=complete_topic, show_default=False),
]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", metavar="N", help="Only this partition; repeatable.")
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="WHERE",
        help="earliest, latest (skips the backlog), a time (2026-11-21T07:30:00.125), an age (15m) or an offset.",
        show_default=False,
    ),
]

LIST_COLUMNS = ("group", "topics", "partitions", "backlog", "leased", "waiting")
PARTITION_COLUMNS = ("topic", "partition", "start", "end", "high_watermark", "backlog", "leased", "waiting", "finished")
MEMBER_COLUMNS = ("member", "topic", "partition", "leased", "lease_s")
RESET_COLUMNS = ("topic", "partition", "begins_at")


def register(app: typer.Typer) -> None:
    queue = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(queue, name="queue", help="List, describe, reset and delete queue groups.")
    command(queue, "list")(list_queues)
    command(queue, "describe")(describe)
    command(queue, "reset")(reset)
    command(queue, "delete")(delete)


async def list_queues(
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the queue groups."""
    async with connected(target, timeout_s) as client:
        groups = await client.queues.list()
    rows = [
        {
            "group": found.group,
            "topics": sorted({each.partition.topic for each in found.partitions}),
            "partitions": len(found.partitions),
            "backlog": found.backlog,
            "leased": found.leased,
            "waiting": sum(each.waiting for each in found.partitions),
        }
        for found in groups
    ]
    show_rows(Rows("queues", LIST_COLUMNS, rows), output, "There is no queue group yet.")


async def describe(
    name: Name,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show a queue group: each partition's backlog, and the members that have messages.

    All messages below `start` are finished, and none from `end` on was delivered.
    """
    async with connected(target, timeout_s) as client:
        found = await client.queues.describe(name)
    partitions = [
        {
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "start": each.start,
            "end": each.end,
            "high_watermark": each.high_watermark,
            "backlog": each.backlog,
            "leased": each.leased,
            "waiting": each.waiting,
            "finished": each.finished,
        }
        for each in found.partitions
    ]
    members = [
        {
            "member": member.member_id,
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "leased": member.leased,
            "lease_s": round(member.lease_s, 1),
        }
        for each in found.partitions
        for member in each.members
    ]
    facts = {"group": found.group, "backlog": found.backlog, "leased": found.leased}
    tables = [Rows("partitions", PARTITION_COLUMNS, partitions), Rows("members", MEMBER_COLUMNS, members)]
    show(Report("", facts, tables), output)


async def reset(
    name: Name,
    topic: Topic,
    to: To,
    partitions: Partitions = None,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Let a queue group begin again: messages from there on come again, those before it do not.

    Leases end, and members go on.
    """
    where = parse_start(to, datetime.now(UTC), "--to")
    if isinstance(where, dict):
        raise InvalidRequest("--to takes one offset for all partitions: name them by --partition, one command each")
    if not yes:
        confirm(f"Let queue group {name} begin again at {to} in topic {topic}?")
    async with connected(target, timeout_s) as client:
        found = await client.queues.reset(name, topic, where, partitions)
    rows = [{"topic": at.topic, "partition": at.partition, "begins_at": offset} for at, offset in sorted(found.items())]
    show(Report("", tables=[Rows("partitions", RESET_COLUMNS, rows)]), output)


async def delete(
    name: Name,
    topic: Topic,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Forget a queue group in a topic: a member that comes later begins again."""
    if not yes:
        confirm(f"Forget queue group {name} in topic {topic}?")
    async with connected(target, timeout_s) as client:
        await client.queues.delete(name, topic)
    notes().print(f"Queue group {name} is forgotten in topic {topic}.")

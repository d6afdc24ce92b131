"""`ledgermq group …`: list, describe and delete consumer groups. `offsets` has the commands that move offsets."""

from __future__ import annotations

from typing import Any

import typer

import ledgermq
from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    AnswerTimeout,
    Output,
    OutputFormat,
    Target,
    Timeout,
    Yes,
)
from ledgermq.cli.groups.offsets import Name, export_offsets, import_offsets, reset
from ledgermq.cli.output.exit_codes import EPILOG
from ledgermq.cli.output.report import Report, Rows, at_time, show, show_rows
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import confirm, notes
from ledgermq.cli.session import connected, connected_session
from ledgermq.client.groups.admin.descriptions import GroupDescription
from ledgermq.client.groups.retry_topics import dead_letter_topic, retry_topic

LIST_COLUMNS = ("group", "state", "members", "assignor")
MEMBER_COLUMNS = ("member", "instance_id", "client_id", "rack", "subscription", "assigned", "heard_s_ago")
OFFSET_COLUMNS = ("topic", "partition", "committed", "end", "lag", "lag_seconds", "member", "committed_at")
STAGED_COLUMNS = ("topic", "partition", "offset", "transaction", "epoch", "number", "staged_at")


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(group, name="group", help="List, describe, reset, delete, export and import consumer groups.")
    command(group, "list")(list_groups)
    command(group, "describe")(describe)
    command(group, "retries")(retries)
    command(group, "reset", examples=("ledgermq group reset reports --to 2h --dry-run",))(reset)
    command(group, "delete")(delete)
    command(group, "export")(export_offsets)
    command(group, "import")(import_offsets)


async def list_groups(
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the consumer groups."""
    async with connected(target, timeout_s) as client:
        groups = await client.groups.list()
    rows = [
        {"group": g.name, "state": g.state, "members": g.members, "assignor": g.assignor, "epoch": g.epoch}
        for g in groups
    ]
    show_rows(Rows("groups", LIST_COLUMNS, rows), output, "There is no consumer group yet.")


async def describe(
    name: Name,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show a group: its members, and each partition's committed offset and lag, in messages and in
    seconds. Offsets that a transaction has staged wait for its end.
    """
    async with connected(target, timeout_s) as client:
        found = await client.groups.describe(name)
        lags = await client.groups.lag_of(found)
    summary = found.summary
    facts = {
        "group": summary.name,
        "state": summary.state,
        "epoch": summary.epoch,
        "assignor": summary.assignor,
        "filter": next((member.filter for member in found.members if member.filter), ""),
        "coordinator": found.coordinator,
        "lag": sum(lag.messages for lag in lags.values()) if lags else None,
    }
    members = Rows("members", MEMBER_COLUMNS, member_rows(found))
    offsets = Rows("offsets", OFFSET_COLUMNS, offset_rows(found, lags))
    staged = Rows("staged_offsets", STAGED_COLUMNS, staged_rows(found), if_any=True)
    show(Report("", facts, [members, offsets, staged]), output)
    if not lags:
        notes().print(
            f"Group {summary.name} has committed no offset in the cluster, so its lag is not known. A group with an"
            " offset store of its own commits there."
        )


async def retries(
    name: Name,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show what a group with retry=Retry.levels(…) has not finished: messages in its retry topic, waiting
    for their next attempt or due, by the number of attempts that have failed, and dead letters. A member
    may have handled some of them, and not committed that yet. `ledgermq dlq` settles dead letters.
    """
    async with connected_session(target, timeout_s) as session:
        session.progress = session.while_in_trouble
        copies = await session.client.dead_letters.retries(name)
        letters = await session.client.dead_letters.count(name)
    facts = {
        "group": name,
        "retry_topic": retry_topic(name),
        "waiting": copies.waiting,
        "next_due": None if copies.next_due_ms is None else at_time(copies.next_due_ms),
        "due": copies.due,
        "due_seconds": 0.0 if copies.longest_due_ms is None else max(0, copies.now_ms - copies.longest_due_ms) / 1000,
        "first_failure": None if copies.first_failure_ms is None else at_time(copies.first_failure_ms),
        "dead_letter_topic": dead_letter_topic(name),
        "dead_letters": letters.waiting,
        "oldest_dead_letter": None if letters.oldest_us is None else at_time(letters.oldest_us // 1000),
        "settled": len(letters.settled),
    }
    by_attempts = [{"attempts": number, "messages": count} for number, count in sorted(copies.by_attempts.items())]
    show(Report("", facts, [Rows("by_attempts", ("attempts", "messages"), by_attempts, if_any=True)]), output)


async def delete(
    name: Name,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete a group that has no members, with all its committed offsets."""
    if not yes:
        confirm(f"Delete group {name} with its committed offsets?")
    async with connected(target, timeout_s) as client:
        await client.groups.delete(name)
    notes().print(f"Group {name} is deleted.")


def member_rows(found: GroupDescription) -> list[dict[str, Any]]:
    return [
        {
            "member": member.member_id,
            "instance_id": member.instance_id,
            "client_id": member.client_id,
            "rack": member.rack,
            "subscription": member.topic_pattern or ", ".join(member.topics),
            "assigned": len(member.assigned),
            "heard_s_ago": round(member.heartbeat_age_s, 1),
        }
        for member in found.members
    ]


def offset_rows(found: GroupDescription, lags: dict[ledgermq.TopicPartition, ledgermq.Lag]) -> list[dict[str, Any]]:
    """Return the partitions that have a committed offset, or that a member holds."""
    holders = {at: member.client_id or member.member_id for member in found.members for at in member.assigned}
    rows = []
    for at in sorted({*found.committed, *holders}):
        known, lag = found.committed.get(at), lags.get(at)
        rows.append(
            {
                "topic": at.topic,
                "partition": at.partition,
                "committed": known.stored.offset if known else None,
                "end": known.stored.offset + lag.messages if known and lag else None,
                "lag": lag.messages if lag else None,
                "lag_seconds": None if lag is None or lag.seconds is None else round(lag.seconds, 3),
                "member": holders.get(at),
                "committed_at": at_time(known.stored.commit_ms) if known else None,
            }
        )
    return rows


def staged_rows(found: GroupDescription) -> list[dict[str, Any]]:
    return [
        {
            "topic": at.topic,
            "partition": at.partition,
            "offset": staged.offset,
            "transaction": staged.transactional_id,
            "epoch": staged.epoch,
            "number": staged.number,
            "staged_at": at_time(staged.staged_ms),
        }
        for at, staged in sorted(found.staged.items())
    ]

"""`ledgermq group …`: list, describe, reset and delete consumer groups; export and import their
committed offsets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

import ledgermq
from ledgermq.cli.arguments.completion import complete_group, complete_topic
from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    AnswerTimeout,
    Debug,
    Output,
    OutputFormat,
    Target,
    Timeout,
    Yes,
)
from ledgermq.cli.arguments.start import parse_start
from ledgermq.cli.output.exit_codes import EPILOG
from ledgermq.cli.output.report import Report, Rows, at_time, show, show_rows
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import confirm, notes
from ledgermq.cli.session import connected, connected_session
from ledgermq.client.groups.admin.descriptions import GroupDescription
from ledgermq.client.groups.admin.resets import PlannedReset, Where
from ledgermq.client.groups.retry_topics import dead_letter_topic, retry_topic
from ledgermq.errors import InvalidRequest

Name = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of the consumer group.", autocompletion=complete_group)
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        help="All partitions of this topic; repeatable. Default: all partitions with a committed offset.",
        autocompletion=complete_topic,
    ),
]
Partitions = Annotated[
    list[str] | None, typer.Option("--partition", "-p", metavar="TOPIC:N", help="Only this partition; repeatable.")
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="WHERE",
        help="earliest, latest (skips the backlog), a time (2026-11-21T07:30:00.125), an age (15m) or an offset.",
    ),
]
ShiftBy = Annotated[
    int | None, typer.Option("--shift", metavar="N", help="Move by N records, forward or back: --shift=-100.")
]
FromGroup = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="GROUP",
        help="Move to the offsets that this group has committed.",
        autocompletion=complete_group,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="JSON file.")]

LIST_COLUMNS = ("group", "state", "members", "assignor")
MEMBER_COLUMNS = ("member", "instance_id", "client_id", "rack", "subscription", "assigned", "heard_s_ago")
OFFSET_COLUMNS = ("topic", "partition", "committed", "end", "lag", "lag_seconds", "member", "committed_at")
STAGED_COLUMNS = ("topic", "partition", "offset", "transaction", "epoch", "number", "staged_at")
RESET_COLUMNS = ("topic", "partition", "before", "after", "records")


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
    debug: Debug = False,
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
    debug: Debug = False,
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
    debug: Debug = False,
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


async def reset(
    name: Name,
    to: To = None,
    shift: ShiftBy = None,
    like: FromGroup = None,
    topic: Topics = None,
    partition: Partitions = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
) -> None:
    """Move the committed offsets of a group.

    Running members continue from the new offsets without a restart.
    """
    where = chosen_where(to, shift, like)
    async with connected_session(target, timeout_s) as session:
        client = session.client
        planned = await client.groups.plan_reset(
            name, where, topic or (), [parse_partition(text) for text in partition or ()]
        )
        show(Report("", tables=[Rows("resets", RESET_COLUMNS, reset_rows(planned))]), output)
        if all(each.before is None for each in planned):
            notes().print(f"Group {name} has not committed an offset for these partitions.")
        if dry_run:
            notes().print("Nothing was changed (--dry-run).")
            return
        if not yes:
            with session.user_is_asked():
                confirm(f"Reset {len(planned)} partitions of group {name}?")
        await carry_out(client, name, planned)
    notes().print(f"{len(planned)} partitions of group {name} are reset.")


async def delete(
    name: Name,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
) -> None:
    """Delete a group that has no members, with all its committed offsets."""
    if not yes:
        confirm(f"Delete group {name} with its committed offsets?")
    async with connected(target, timeout_s) as client:
        await client.groups.delete(name)
    notes().print(f"Group {name} is deleted.")


async def export_offsets(
    name: Name,
    file: File,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
) -> None:
    """Write the committed offsets of a group to a JSON file."""
    async with connected(target, timeout_s) as client:
        found = await client.groups.describe(name)
    offsets = [
        {"topic": at.topic, "topic_id": known.topic_id, "partition": at.partition, **asdict(known.stored)}
        for at, known in sorted(found.committed.items())
    ]
    file.write_text(json.dumps({"group": name, "offsets": offsets}, indent=2) + "\n")
    notes().print(f"{len(offsets)} offsets of group {name} written to {file}.")


async def import_offsets(
    name: Name,
    file: File,
    dry_run: DryRun = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
) -> None:
    """Commit for a group the offsets that `group export` wrote, for this or another group.

    Offsets of topics that were deleted and created again since then are refused.
    """
    wanted = read_offsets(file)
    async with connected(target, timeout_s) as client:
        known = await client.groups.plan_reset(name, "latest", partitions=wanted)
        planned = []
        for change in known:
            topic_id, offset = wanted[change.partition]
            if topic_id != change.topic_id:
                raise InvalidRequest(
                    f"topic {change.partition.topic!r} has the id {change.topic_id}, not {topic_id}: "
                    "it was deleted and created again since the export"
                )
            if offset > change.after:
                place = f"{change.partition.topic}/{change.partition.partition}"
                raise InvalidRequest(f"{place} ends at {change.after}, so {offset} cannot be committed")
            planned.append(PlannedReset(change.partition, topic_id, change.before, offset))
        show(Report("", tables=[Rows("resets", RESET_COLUMNS, reset_rows(planned))]), output)
        if not dry_run:
            await carry_out(client, name, planned)


async def carry_out(client: ledgermq.Client, name: str, planned: Sequence[PlannedReset]) -> None:
    failed = await client.groups.reset(name, planned)
    for partition, error in failed.items():
        notes().print(f"{partition.topic}/{partition.partition}: {error.code}: {error}", markup=False)
    if failed:
        raise next(iter(failed.values()))


def chosen_where(to: str | None, shift: int | None, like: str | None) -> Where:
    """Return the target of a reset. Raises InvalidRequest unless exactly one is given."""
    given = [option for option, value in (("--to", to), ("--shift", shift), ("--like", like)) if value is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"give exactly one of --to, --shift and --like{', not ' + ' and '.join(given) if given else ''}"
        )
    if shift is not None:
        return ledgermq.Shift(shift)
    if like is not None:
        return ledgermq.Like(like)
    where = parse_start(to or "", datetime.now(UTC), option="--to")
    if isinstance(where, dict):
        raise InvalidRequest("--to takes a single offset; choose its partitions with --partition TOPIC:N")
    return where


def parse_partition(text: str) -> ledgermq.TopicPartition:
    """Parse TOPIC:N. Raises InvalidRequest."""
    topic, colon, number = text.rpartition(":")
    if not colon or not topic or not number.isdecimal() or len(number) > 9:
        raise InvalidRequest(f"--partition {text!r}: expected TOPIC:N, for example orders:3")
    return ledgermq.TopicPartition(topic, int(number))


def read_offsets(file: Path) -> dict[ledgermq.TopicPartition, tuple[int, int]]:
    """Return by partition (topic id, offset), read from an exported file. Raises InvalidRequest,
    naming what is wrong.
    """
    try:
        entries = json.loads(file.read_bytes())["offsets"]
        found = {
            ledgermq.TopicPartition(str(e["topic"]), _whole(e["partition"])): (
                _whole(e["topic_id"]),
                _whole(e["offset"]),
            )
            for e in entries
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"{file} is not a file written by `ledgermq group export`: {error!r}") from error
    if not found:
        raise InvalidRequest(f"{file} holds no offsets")
    return found


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not an offset, a partition or a topic id")
    return value


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


def reset_rows(planned: Sequence[PlannedReset]) -> list[dict[str, Any]]:
    return [
        {
            "topic": change.partition.topic,
            "partition": change.partition.partition,
            "before": change.before,
            "after": change.after,
            "records": change.records,
        }
        for change in planned
    ]

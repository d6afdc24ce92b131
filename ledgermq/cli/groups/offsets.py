"""`ledgermq group reset`, `export`, `import`: move the committed offsets of a group, or keep them in a file."""

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
    Output,
    OutputFormat,
    Target,
    Timeout,
    Yes,
)
from ledgermq.cli.arguments.start import parse_start
from ledgermq.cli.output.report import Report, Rows, show
from ledgermq.cli.output.terminal import confirm, notes
from ledgermq.cli.session import connected, connected_session
from ledgermq.client.groups.admin.resets import PlannedReset, Where
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

RESET_COLUMNS = ("topic", "partition", "before", "after", "records")


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


async def export_offsets(
    name: Name,
    file: File,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
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

"""`ledgermq topic …`: create, list, describe, alter, apply, delete and undelete topics, and delete
records of a topic.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import ledgermq
from ledgermq.cli.arguments.completion import complete_assignment, complete_setting, complete_topic
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
from ledgermq.errors import InvalidConfig, InvalidRequest, TopicExists
from ledgermq.protocol.naming.names import NAME_CHARS_MAX

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topic)]
NewName = Annotated[
    str, typer.Argument(metavar="TOPIC", help=f"1 to {NAME_CHARS_MAX} of letters, digits, '.', '_' and '-'.")
]
Partitions = Annotated[
    int, typer.Option("--partitions", "-p", min=0, help="Number of partitions; 0 = the cluster's default.")
]
Grow = Annotated[
    int, typer.Option("--partitions", "-p", min=0, help="New number of partitions; it can only grow. 0 = unchanged.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="NAME=VALUE",
        help="A topic setting, like retention.ms=86400000; repeatable.",
        autocompletion=complete_assignment,
    ),
]
Unset = Annotated[
    list[str] | None,
    typer.Option(
        "--unset", metavar="NAME", help="Setting to reset to its default; repeatable.", autocompletion=complete_setting
    ),
]
IfNotExists = Annotated[
    bool, typer.Option("--if-not-exists", help="Succeed if the topic already exists, and leave it unchanged.")
]

Deleted = Annotated[
    bool, typer.Option("--deleted", help="List the topics that were deleted and can be brought back, instead.")
]
Now = Annotated[
    bool,
    typer.Option(
        "--now", help="Delete it for good; otherwise `ledgermq topic undelete` brings it back until its grace is over."
    ),
]

WithCuts = Annotated[
    bool, typer.Option("--with-cuts", help="With --now: also drop every cut that has the topic and keeps its records.")
]
BeforeOffset = Annotated[
    str | None,
    typer.Option(
        "--before-offset",
        metavar="OFFSET",
        help="Delete records below this offset: an offset, partition:offset,… or latest (all).",
    ),
]
BeforeTime = Annotated[
    str | None,
    typer.Option(
        "--before-time",
        metavar="TIME",
        help="Delete records before the first one at or after this time: 2026-11-21T07:30, or an age like 7d.",
    ),
]
OfPartitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable. Default: all.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")]

TopicFile = Annotated[
    str,
    typer.Option(
        "--file",
        metavar="FILE",
        help="A .yaml, .json or .toml file that declares topics; - reads YAML from stdin.",
    ),
]
PlanOnly = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]

LIST_COLUMNS = ("topic", "partitions", "settings", "created")
DELETED_TOPIC_COLUMNS = ("topic", "partitions", "settings", "deleted", "kept_until")
DELETED_COLUMNS = ("partition", "log_start_before", "log_start", "records")
HOLDER_COLUMNS = ("partition", "name", "lease_s", "changes")
PLAN_COLUMNS = ("topic", "action", "partitions", "settings", "unset")
PARTITION_COLUMNS = ("partition", "bundle", "owner", "log_start", "end")


def register(app: typer.Typer) -> None:
    topic = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(topic, name="topic", help="Create, list, describe, alter, delete and undelete topics.")
    example = "ledgermq topic create events --partitions 12 --set retention.ms=604800000"
    command(topic, "create", examples=(example,))(create)
    command(topic, "list")(list_topics)
    command(topic, "describe")(describe)
    command(topic, "holders")(holders)
    command(topic, "alter")(alter)
    command(topic, "apply", examples=("ledgermq topic apply --file topics.yaml --dry-run",))(apply)
    command(topic, "delete")(delete)
    command(topic, "undelete")(undelete)
    command(topic, "delete-records")(delete_records)


async def create(
    name: NewName,
    partitions: Partitions = 0,
    settings: Settings = None,
    if_not_exists: IfNotExists = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create a topic."""
    wanted = parse_settings(settings)
    async with connected(target, timeout_s, may_make=True) as client:
        try:
            found = await client.create_topic(name, partitions=partitions, settings=wanted)
        except TopicExists:
            if not if_not_exists:
                raise
            found = await client.describe_topic(name)
        show(Report("", topic_facts(found)), output)


async def list_topics(
    deleted: Deleted = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the topics."""
    async with connected(target, timeout_s) as client:
        topics = sorted(await client.list_topics(deleted=deleted), key=lambda topic: topic.name)
    if deleted:
        kept = [topic_facts(topic) | _deleted_facts(topic) for topic in topics]
        show_rows(Rows("topics", DELETED_TOPIC_COLUMNS, kept), output, "No deleted topic can be brought back.")
        return
    rows = [topic_facts(topic) for topic in topics]
    none = "There is no topic yet. `ledgermq topic create NAME` creates one."
    show_rows(Rows("topics", LIST_COLUMNS, rows), output, none)


async def describe(
    name: Name,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show a topic: settings, and each partition's bundle, owner, first and next offset."""
    async with connected(target, timeout_s) as client:
        found = await client.describe_topic(name)
        starts = await client.list_offsets(name, "earliest")
        ends = await client.list_offsets(name, "latest")
    rows = [
        {
            "partition": number,
            "bundle": part.bundle,
            "owner": part.owner,
            "log_start": starts.get(number),
            "end": ends.get(number),
        }
        for number, part in enumerate(found.partitions)
    ]
    facts = topic_facts(found) | {"records": sum(ends.values()) - sum(starts.values())}
    show(Report("", facts, [Rows("partition_list", PARTITION_COLUMNS, rows)]), output)


async def holders(
    name: Name,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show which exclusive producers have partitions of a topic for themselves."""
    async with connected(target, timeout_s) as client:
        found = await client.holders(name)
    rows = [
        {"partition": each.partition, "name": each.name, "lease_s": each.lease_s, "changes": each.changes}
        for each in found
    ]
    show_rows(Rows("holders", HOLDER_COLUMNS, rows), output, f"No exclusive producer has a partition of topic {name}.")


async def alter(
    name: Name,
    partitions: Grow = 0,
    settings: Settings = None,
    unset: Unset = None,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Change settings, or add partitions."""
    wanted = parse_settings(settings)
    if not (partitions or wanted or unset):
        raise typer.BadParameter("nothing to change: give --partitions, --set or --unset")
    async with connected(target, timeout_s) as client:
        found = await client.alter_topic(name, partitions=partitions, settings=wanted, unset=unset or ())
    show(Report("", topic_facts(found)), output)


async def apply(
    file: TopicFile,
    dry_run: PlanOnly = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create and alter topics until they are as a file declares them.

    The file has one key, topics: a list of topics with name and, if wanted, partitions and settings. A setting that
    the file does not name gets its default. Nothing is ever deleted: topics that the file does not name stay as
    they are, and partitions cannot be removed. Running it again changes nothing.
    """
    from ledgermq.client.admin.topic_plan import read_topics  # here: completion needs no client

    wanted = read_topics(*declared(file))
    async with connected(target, timeout_s, may_make=not dry_run) as client:
        plan = await client.plan_topics(wanted)
        for change in plan if not dry_run else ():
            if change.action != "unchanged":
                await client.apply_topic(change)
                notes().print(f"{change.name}: {'created' if change.action == 'create' else 'altered'}")
    rows = [_change_facts(change) for change in plan]
    show(Report("", {"dry_run": dry_run}, [Rows("topics", PLAN_COLUMNS, rows)]), output)


def declared(file: str) -> tuple[str, str, str]:
    """Return the text of a file that declares topics, its form, and its name. Raises InvalidRequest."""
    from ledgermq.client.admin.topic_plan import FORMATS

    if file == "-":
        return sys.stdin.read(), "yaml", "standard input"
    form = FORMATS.get(Path(file).suffix.lower())
    if form is None:
        raise InvalidRequest(f"{file}: the name of the file must end in {', '.join(FORMATS)}")
    try:
        return Path(file).read_text(encoding="utf-8"), form, file
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{file} cannot be read: {error}") from error


def _change_facts(change: ledgermq.TopicChange) -> dict[str, Any]:
    return {
        "topic": change.name,
        "action": change.action,
        "partitions": change.partitions or None,
        "settings": dict(change.settings),
        "unset": list(change.unset),
    }


async def delete(
    name: Name,
    now: Now = False,
    with_cuts: WithCuts = False,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete a topic with all its records.

    It can be brought back for a day, or as long as topic.delete.grace.ms says, and keeps its name until then.
    """
    if with_cuts and not now:
        raise InvalidConfig("--with-cuts needs --now: until its grace is over, the topic can be brought back")
    if not yes:
        more = ", for good, and all cuts that have it" if with_cuts else ", for good" if now else ""
        confirm(f"Delete topic {name} with all its records{more}?")
    async with connected(target, timeout_s) as client:
        if with_cuts:
            cuts = ", ".join(await client.topics.delete_with_cuts(name))
            notes().print(f"Topic {name} is deleted, and no cut has it.{f' Dropped now: {cuts}.' if cuts else ''}")
            return
        until = await client.delete_topic(name, now=now)
    kept = f" Until {_utc(until)} `ledgermq topic undelete {name}` brings it back." if until else ""
    notes().print(f"Topic {name} is deleted.{kept}")


async def undelete(
    name: Name,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Bring a deleted topic back, with its records and the offsets of its groups."""
    async with connected(target, timeout_s) as client:
        found = await client.undelete_topic(name)
    show(Report("", topic_facts(found)), output)


async def delete_records(
    name: Name,
    before_offset: BeforeOffset = None,
    before_time: BeforeTime = None,
    partitions: OfPartitions = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete the oldest records of a topic, permanently.

    Consumers no longer read them once the command returns; their files are removed later.
    """
    before = parse_before(before_offset, before_time, datetime.now(UTC))
    if not dry_run and not yes:
        confirm(f"Permanently delete records of topic {name}?")
    async with connected(target, timeout_s) as client:
        found = await client.delete_records(name, before, partitions, dry_run=dry_run)
    rows = [
        {
            "partition": number,
            "log_start_before": one.log_start_before,
            "log_start": one.log_start,
            "records": one.records,
        }
        for number, one in sorted(found.items())
    ]
    facts = {"topic": name, "records": sum(one.records for one in found.values()), "dry_run": dry_run}
    show(Report("", facts, [Rows("partition_list", DELETED_COLUMNS, rows)]), output)


def parse_before(
    offset: str | None, time: str | None, now: datetime
) -> int | Literal["end"] | datetime | dict[int, int]:
    """Return where deletion ends. Raises InvalidRequest."""
    if (offset is None) == (time is None):
        raise InvalidRequest("give either --before-offset or --before-time")
    if time is not None:
        moment = parse_start(time, now, option="--before-time")
        if not isinstance(moment, datetime):
            raise InvalidRequest(f"--before-time {time!r}: give a time like 2026-11-21T07:30:00, or an age like 7d")
        return moment
    found = parse_start(offset or "", now, option="--before-offset")
    if found == "latest":
        return "end"
    if not isinstance(found, (int, dict)):
        raise InvalidRequest(f"--before-offset {offset!r}: give an offset, partition:offset,…, or latest")
    return found


def parse_settings(pairs: Iterable[str] | None) -> dict[str, str]:
    """Parse `NAME=VALUE` pairs. Raises InvalidConfig."""
    settings: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InvalidConfig(f"--set {pair!r}: expected NAME=VALUE, for example retention.ms=86400000")
        settings[name.strip()] = value.strip()
    return settings


def topic_facts(topic: ledgermq.TopicDescription) -> dict[str, Any]:
    created = _utc(topic.created)
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "partitions": len(topic.partitions),
        "settings": dict(topic.settings),
        "created": created if topic.created_ms else None,
    }


def _deleted_facts(topic: ledgermq.TopicDescription) -> dict[str, Any]:
    times = {"deleted": topic.deleted_ms, "kept_until": topic.kept_until_ms}
    return {name: _utc(datetime.fromtimestamp(ms / 1000, UTC)) for name, ms in times.items()}


def _utc(time: datetime) -> str:
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")

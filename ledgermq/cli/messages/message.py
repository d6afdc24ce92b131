"""`ledgermq message …`: find messages by key, show one by its id, and trace where it went."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

import ledgermq
from ledgermq.cli.arguments.completion import complete_topic
from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    AnswerTimeout,
    Output,
    OutputFormat,
    Target,
    Timeout,
)
from ledgermq.cli.arguments.start import parse_start
from ledgermq.cli.output.exit_codes import EPILOG
from ledgermq.cli.output.report import Report, Rows, at_time, show
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import notes, progress_of_items
from ledgermq.cli.session import connected_session
from ledgermq.client.finding import MAX, Partitions
from ledgermq.client.groups.retry_topics import failures_of
from ledgermq.errors import InvalidRequest, SearchStopped
from ledgermq.json_records import fields_of

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to search.", autocompletion=complete_topic)]
Id = Annotated[
    str, typer.Argument(metavar="TOPIC:PARTITION:OFFSET", help="Id of the message, as `message find` shows it.")
]
Key = Annotated[str | None, typer.Option("--key", "-k", help="Messages with this key.")]
KeyHex = Annotated[str | None, typer.Option("--key-hex", metavar="HEX", help="The same for a key that is no text.")]
PLACES = "earliest, latest, a time (2026-11-21T07:30), an age (15m), an offset, or PARTITION:OFFSET,…"
Start = Annotated[str, typer.Option("--start", metavar="WHERE", help=f"First message to search: {PLACES}.")]
End = Annotated[str, typer.Option("--end", metavar="WHERE", help="Where the search ends, without this message.")]
Max = Annotated[int, typer.Option("--max", "-n", min=1, help="Stop after this number of messages.")]
PartitionList = Annotated[
    list[int] | None,
    typer.Option(
        "--partition",
        "-p",
        min=0,
        help="Search this partition; repeatable. Default: the one that producers give the key, if they do not choose.",
    ),
]
AllPartitions = Annotated[bool, typer.Option("--all-partitions", "-a", help="Search all partitions.")]
OldestFirst = Annotated[bool, typer.Option("--oldest-first", help="Begin with the oldest message, not the newest.")]
Hex = Annotated[bool, typer.Option("--hex", help="Show the value in hexadecimal, even if it is text.")]

FOUND_COLUMNS = ("id", "timestamp", "key", "tag", "bytes", "value")
HEADER_COLUMNS = ("name", "value")
GROUP_COLUMNS = ("group", "state", "committed", "committed_at")
QUEUE_COLUMNS = ("group", "state", "start", "end")
COPY_COLUMNS = ("group", "kind", "id", "time", "attempts", "error", "settled")
VALUE_CHARS_MAX = 80
"""Of a value in a table."""
HEX_BYTES_MAX = 4096
"""Of a value that is shown to people."""


def register(app: typer.Typer) -> None:
    message = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(message, name="message", help="Find messages by key, show one by its id, trace where it went.")
    command(message, "find", examples=("ledgermq message find orders --key table-7 --max 5",))(find)
    command(message, "show")(show_one)
    command(message, "trace")(trace)


async def find(
    topic: Topic,
    key: Key = None,
    key_hex: KeyHex = None,
    start: Start = "earliest",
    end: End = "latest",
    maximum: Max = MAX,
    partition: PartitionList = None,
    all_partitions: AllPartitions = False,
    oldest_first: OldestFirst = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Find the messages of a topic that have a key, the newest first.

    When --timeout is over before all is searched, the command prints what it has found, says how to go on,
    and ends with exit code 3.
    """
    wanted = parse_key(key, key_hex)
    if partition and all_partitions:
        raise InvalidRequest("give either --partition or --all-partitions")
    partitions: Partitions = partition or ("all" if all_partitions else "key")
    now = datetime.now(UTC)
    found: list[ledgermq.Message] = []
    stopped = False
    async with connected_session(target, timeout_s) as session:
        search = session.client.find(
            topic,
            key=wanted,
            start=parse_start(start, now, "--start"),
            end=parse_start(end, now, "--end"),
            max=maximum,
            partitions=partitions,
            order="oldest" if oldest_first else "newest",
            timeout=timeout_s,
        )
        session.progress = session.while_in_trouble
        with progress_of_items() as bar:
            task = bar.add_task(f"messages of {topic}", total=None, note="")
            try:
                async for message in search:
                    found.append(message)
                    bar.update(task, completed=len(found), note=f"{search.searched} offsets searched")
            except SearchStopped:
                stopped = True
    row = found_row if output is OutputFormat.TABLE else json_row
    show(Report("", tables=[Rows("messages", FOUND_COLUMNS, [row(message) for message in found])]), output)
    if stopped:
        raise SearchStopped(
            f"{search.searched} offsets were searched within {timeout_s:g} s, and more are left: raise --timeout, or go"
            f" on with {rest_options(search.rest)}"
        )
    if note := note_on(search, maximum, partitions):
        notes().print(note, markup=False, soft_wrap=True)


def note_on(search: ledgermq.Search, maximum: int, partitions: Partitions) -> str:
    """Say what a search has left out; empty: nothing that a caller does not know."""
    if search.stopped:
        return f"There may be more (--max {maximum}); go on with {rest_options(search.rest)}"
    if partitions != "key":
        return ""
    where = ", ".join(map(str, search.partitions))
    return (
        f"Partition {where} was searched, which the default partitioner gives this key; --all-partitions searches all."
    )


async def show_one(
    message_id: Id,
    hexadecimal: Hex = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show a message: all its fields, its headers and value, and the objects that hold it."""
    wanted = ledgermq.MessageId.parse(message_id)
    async with connected_session(target, timeout_s) as session:
        found = await session.client.describe_message(wanted)
    if output is OutputFormat.JSON:
        show(Report("", stored_facts(found) | fields_of(found.message)), output)
        return
    message = found.message
    facts = {
        "id": str(found.id),
        "timestamp": time_text(message.timestamp),
        "key": shown(message.key, hexadecimal=False),
        "tag": message.tag,
        "value": shown(message.value, hexadecimal=hexadecimal),
        "value_bytes": None if message.value is None else len(message.value),
    }
    headers = [{"name": name, "value": shown(value, hexadecimal=False)} for name, value in message.headers]
    show(Report("", facts | stored_facts(found), [Rows("headers", HEADER_COLUMNS, headers, if_any=True)]), output)


async def trace(
    message_id: Id,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show where a message went: when and in which objects it was stored, which groups have read it, and its
    copies in retry and dead-letter topics.

    --timeout bounds the search of each of these topics. What was not searched to its end is said, and the
    exit code is 3 then.
    """
    wanted = ledgermq.MessageId.parse(message_id)
    async with connected_session(target, timeout_s) as session:
        session.progress = session.while_in_trouble
        with progress_of_items() as bar:
            task = bar.add_task(f"trace of {wanted}", total=None, note="")
            count = 0

            def progress(what: str) -> None:
                nonlocal count
                count += 1
                bar.update(task, completed=count, note=what)

            found = await session.client.trace(wanted, timeout=timeout_s, on_progress=progress)
    show(trace_report(found), output)
    if found.unfinished:
        raise SearchStopped(f"not all was searched: {'; '.join(found.unfinished)}: raise --timeout")


def trace_report(found: ledgermq.MessageTrace) -> Report:
    facts = stored_facts(found.message)
    failures = failures_of(found.message.message.headers)
    if failures is not None:
        origin = failures.origin
        facts["copy_of"] = str(ledgermq.MessageId(*origin))
    groups = [
        {
            "group": each.group,
            "state": each.state,
            "committed": each.committed,
            "committed_at": at_time(each.committed_ms) if each.committed_ms else None,
        }
        for each in found.groups
    ]
    queues = [{"group": each.group, "state": each.state, "start": each.start, "end": each.end} for each in found.queues]
    copies = [
        {
            "group": each.group,
            "kind": each.kind,
            "id": str(each.id),
            "time": time_text(each.time),
            "attempts": each.attempts,
            "error": each.error,
            "settled": each.settled,
        }
        for each in found.copies
    ]
    facts["unfinished"] = found.unfinished
    tables = [
        Rows("groups", GROUP_COLUMNS, groups),
        Rows("queue_groups", QUEUE_COLUMNS, queues, if_any=True),
        Rows("copies", COPY_COLUMNS, copies, if_any=True),
    ]
    return Report("", facts, tables)


def stored_facts(found: ledgermq.MessageDescription) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": str(found.id),
        "timestamp": time_text(found.message.timestamp),
        "stored_at": time_text(found.stored_at),
        "segment": found.segment,
        "position": found.position,
        "parquet_file": found.parquet_file,
        "compacted_at": time_text(found.compacted_at),
    }
    if (by := found.stored_by) is not None:
        facts |= {
            "broker": by.broker,
            "epoch": by.epoch,
            "batch_offset": by.base_offset,
            "batch_records": by.record_count,
            "producer_id": None if by.producer_id is None else by.producer_id.hex(),
            "sequence": None if by.producer_id is None else by.sequence,
        }
    return facts


def found_row(message: ledgermq.Message) -> dict[str, Any]:
    """Return a row of the table for people."""
    value = shown(message.value, hexadecimal=False)
    return {
        "id": str(message.id),
        "timestamp": time_text(message.timestamp),
        "key": shown(message.key, hexadecimal=False),
        "tag": message.tag,
        "bytes": len(message.key or b"") + len(message.value or b""),
        "value": value if value is None or len(value) <= VALUE_CHARS_MAX else value[: VALUE_CHARS_MAX - 1] + "…",
    }


def json_row(message: ledgermq.Message) -> dict[str, Any]:
    return {"id": str(message.id), **fields_of(message)}


def parse_key(key: str | None, key_hex: str | None) -> bytes:
    """Return the key that the options name. Raises InvalidRequest."""
    if (key is None) is (key_hex is None):
        raise InvalidRequest("give the key: --key TEXT, or --key-hex HEX")
    if key is not None:
        return key.encode()
    try:
        return bytes.fromhex(key_hex or "")
    except ValueError:
        raise InvalidRequest(f"--key-hex {key_hex!r}: give pairs of hexadecimal digits, as in 0a1b") from None


def rest_options(rest: dict[str, Any]) -> str:
    """Return the options that search what is left."""
    partitions = " ".join(f"--partition {each}" for each in rest["partitions"])
    start, end = (",".join(f"{at}:{offset}" for at, offset in rest[name].items()) for name in ("start", "end"))
    return f"{partitions} --start {start} --end {end}"


def shown(data: bytes | None, *, hexadecimal: bool) -> str | None:
    """Return bytes for people: as text, or in hexadecimal if they are not UTF-8."""
    if data is None:
        return None
    if not hexadecimal:
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    cut = data[:HEX_BYTES_MAX]
    return cut.hex(" ") + (f" … ({len(data)} bytes)" if len(cut) < len(data) else "")


def time_text(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

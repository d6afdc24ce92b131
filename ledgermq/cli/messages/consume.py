"""`ledgermq consume`: print the messages of a topic from a given start, to its present end or
until Ctrl-C.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated

import typer

import ledgermq
from ledgermq.cli.arguments.completion import complete_group, complete_topic
from ledgermq.cli.arguments.options import DEFAULT_TARGET, DEFAULT_TIMEOUT_S, AnswerTimeout, OutputFormat, Target
from ledgermq.cli.arguments.start import parse_start
from ledgermq.cli.messages.formats import FORMATS, MessageFormat, Template, formatter, parse_format
from ledgermq.cli.output.reporting import command
from ledgermq.cli.session import connected_session
from ledgermq.client.setting_types import MemberOptions
from ledgermq.errors import InvalidRequest, OffsetOutOfRange, UnknownPartition

FETCH_RECORDS_MAX = 5000
FETCH_WAIT_S = 1.0
CLOSE_TIMEOUT_S_MAX = 10.0
EXAMPLES = (
    "ledgermq consume events",
    "ledgermq consume events --from earliest --until-end --format jsonl",
    "ledgermq consume events --from -10 --format '%p:%o %k %s'",
    'ledgermq consume events --from 15m --filter "price > 5"',
    "ledgermq consume events --group reports",
)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.", autocompletion=complete_topic)]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHERE",
        help=(
            "earliest, latest, -N (the last N of each partition), a time (2026-11-21T07:30), an age (15m), an offset,"
            " or PARTITION:OFFSET,… (other partitions: earliest). Default: latest; with --until-end or --group"
            " earliest."
        ),
    ),
]
UntilEnd = Annotated[
    bool, typer.Option("--until-end", "-e", help="Stop at the end that each partition had when the command began.")
]
Max = Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after this number of messages.")]
Form = Annotated[
    str,
    typer.Option(
        "--format",
        "-f",
        metavar="value|jsonl|csv|table|TEMPLATE",
        help="How to print a message. A template has %k for the key, %s value, %t topic, %p partition, %o offset,"
        " %T timestamp, %h headers, %g tag; and \\n, \\t.",
        autocompletion=lambda: list(FORMATS),
    ),
]
ResultFormat = Annotated[
    OutputFormat | None,
    typer.Option("--output", "-o", show_default=False, help="As in other commands: json is --format jsonl."),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="GROUP",
        help="Read as a member of this group, which commits offsets; --from applies to partitions without one.",
        autocompletion=complete_group,
    ),
]
Direct = Annotated[
    str,
    typer.Option(
        "--direct",
        metavar="URL",
        help="Read old segments below this URL, as file:///root/of/the/cluster, without the broker.",
    ),
]
Expired = Annotated[
    bool, typer.Option("--expired", help="Print messages whose time to live is over, too, instead of skipping them.")
]
Filter = Annotated[
    str,
    typer.Option(
        "--filter",
        metavar="FILTER",
        help=(
            "Only messages with one of these tags ('TagA || TagB'), or with such headers (\"region IN ('eu', 'us') AND"
            ' price > 5").'
        ),
    ),
]
PartitionList = Annotated[
    list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable.")
]


def register(app: typer.Typer) -> None:
    command(app, "consume", examples=EXAMPLES)(consume)


async def consume(
    topic: Name,
    begin: From = None,
    until_end: UntilEnd = False,
    max_messages: Max = None,
    form: Form = "",
    output: ResultFormat = None,
    partition: PartitionList = None,
    group: Group = None,
    direct: Direct = "",
    expired: Expired = False,
    only: Filter = "",
    target: Target = DEFAULT_TARGET,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print messages as they come, to the end of the topic (--until-end), up to a number (--max),
    or until Ctrl-C.
    """
    printing = chosen_format(form, output, MessageFormat.VALUE)
    from ledgermq.filters.filter import parse_filter  # late: completion and help need no Arrow

    parse_filter(only)
    wanted = begin or ("earliest" if until_end or group else "latest")
    last = int(wanted[1:]) if re.fullmatch(r"-\d{1,18}", wanted) else None
    start = parse_start("latest" if last is not None else wanted, datetime.now(UTC))
    async with connected_session(target, timeout_s) as session:
        client = session.client
        if group is not None:
            if partition or last is not None or isinstance(start, int | dict):
                raise InvalidRequest(
                    "the group assigns partitions and stores offsets; to move them, use `ledgermq group reset`"
                )
            # A member would wait forever for a topic that does not exist, or for brokers.
            await client.describe_topic(topic)
            session.progress = session.while_in_trouble
            settings: MemberOptions = {"direct_reads": direct, "deliver_expired": expired, "filter": only}
            settings["request_timeout_s"] = timeout_s
            settings["close_timeout_s"] = min(CLOSE_TIMEOUT_S_MAX, timeout_s)
            async with client.consumer(topic, group=group, start=start, **settings) as member:
                ends = await client.list_offsets(topic, "latest") if until_end else None
                await print_as_member(member, Printer(printing), max_messages, ends)
            return
        partitions = await chosen_partitions(client, topic, partition, start if isinstance(start, dict) else ())
        offsets = dict.fromkeys(partitions, start) if isinstance(start, int) else start
        if last is not None:
            offsets = await last_offsets(client, topic, partitions, last)
        session.progress = session.while_in_trouble
        async with client.consumer(
            topic,
            partitions=partitions,
            start=offsets,
            request_timeout_s=timeout_s,
            direct_reads=direct,
            deliver_expired=expired,
            filter=only,
        ) as consumer:
            await print_messages(consumer, Printer(printing), max_messages, until_end=until_end)


async def print_as_member(
    member: ledgermq.GroupConsumer, printer: Printer, max_messages: int | None, ends: Mapping[int, int] | None
) -> None:
    """Commit what was printed, also when Ctrl-C ends the command.

    `ends`: stop when the group has reached these offsets.
    """
    left = max_messages if max_messages is not None else sys.maxsize
    while left > 0:
        messages = await member.fetch(min(left, FETCH_RECORDS_MAX), timeout=FETCH_WAIT_S)
        printer.write(messages)
        left -= len(messages)
        if (
            ends is not None
            and not messages
            and all(offset >= ends.get(at.partition, 0) for at, offset in member.positions().items())
        ):
            return


async def chosen_partitions(
    client: ledgermq.Client, topic: str, wanted: list[int] | None, started: Iterable[int]
) -> list[int]:
    """Return the wanted partitions, or all of them if none is named.

    `started`: the partitions that --from names. Raises UnknownTopic, UnknownPartition,
    InvalidRequest.
    """
    count = len((await client.describe_topic(topic)).partitions)
    for number in [*(wanted or ()), *started]:
        if number >= count:
            raise UnknownPartition(f"topic {topic!r} has partitions 0 to {count - 1}, not {number}")
    if wanted and (others := sorted(set(started) - set(wanted))):
        raise InvalidRequest(f"--from names partition {others[0]}, which --partition leaves out")
    return sorted(set(wanted)) if wanted else list(range(count))


def chosen_format(form: str, output: OutputFormat | None, default: MessageFormat) -> MessageFormat | Template:
    """Return the format that --format or --output names. Raises InvalidRequest."""
    if form and output is not None:
        raise InvalidRequest("give either --format or --output")
    if output is not None:
        return MessageFormat.JSONL if output is OutputFormat.JSON else MessageFormat.TABLE
    return parse_format(form) if form else default


async def last_offsets(client: ledgermq.Client, topic: str, partitions: Iterable[int], count: int) -> dict[int, int]:
    """Return where the last `count` offsets of each partition begin. Raises Unavailable."""
    starts, ends = await client.list_offsets(topic, "earliest"), await client.list_offsets(topic, "latest")
    return {number: max(starts[number], ends[number] - count) for number in partitions}


class Printer:
    """Writes messages to stdout as they arrive, and flushes after each write, so that a pipe
    receives them at once.
    """

    def __init__(self, form: MessageFormat | Template) -> None:
        self._out = sys.stdout.buffer
        terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if terminal else 0
        above, self._format = formatter(form, width, terminal=terminal)
        self._out.write(above)

    def write(self, messages: Iterable[ledgermq.Message]) -> None:
        self._out.write(b"".join(map(self._format, messages)))
        self._out.flush()


async def print_messages(
    consumer: ledgermq.Consumer, printer: Printer, max_messages: int | None, *, until_end: bool
) -> None:
    """Print up to the ends found at the start, up to the maximum number, or without end.

    Messages beyond these ends are not printed, even if they arrive in the meantime.
    """
    ends = {end.partition: offset for end, offset in (await consumer.end_offsets()).items()} if until_end else None
    if ends is not None:
        check_within(consumer, ends)
    left = max_messages if max_messages is not None else sys.maxsize
    while left > 0 and not (ends is not None and reached(consumer, ends)):
        messages = await consumer.fetch(min(left, FETCH_RECORDS_MAX), timeout=FETCH_WAIT_S)
        wanted = [m for m in messages if ends is None or m.offset < ends[m.partition]]
        printer.write(wanted)
        left -= len(wanted)


def check_within(consumer: ledgermq.Consumer, ends: Mapping[int, int]) -> None:
    """Raise OffsetOutOfRange for a start beyond the end, as reading from there would."""
    for at, position in consumer.positions().items():
        if position > ends.get(at.partition, position):
            raise OffsetOutOfRange(
                f"{at.topic}/{at.partition}: offset {position} does not exist; the log ends at {ends[at.partition]}"
            )


def reached(consumer: ledgermq.Consumer, ends: Mapping[int, int]) -> bool:
    return all(position >= ends[at.partition] for at, position in consumer.positions().items() if at.partition in ends)

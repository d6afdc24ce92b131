"""`ledgermq produce`: send the records of a file or of stdin, and report where they are stored."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, repeat
from pathlib import Path
from typing import Annotated

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
)
from ledgermq.cli.messages.delayed import Delay, DelayOption, DeliverAtOption, LevelOption, parse_delay, sent_row
from ledgermq.cli.messages.inputs import FORMATS, InputFormat, InputRecord, Shape, parse_input_format, read_records
from ledgermq.cli.messages.lines import LineSource, in_pieces, open_lines
from ledgermq.cli.messages.sent import Sent, at_line
from ledgermq.cli.output.report import Report, Rows, show
from ledgermq.cli.output.reporting import TAKES_BYTES, command
from ledgermq.cli.output.terminal import notes, progress_of_bytes, progress_of_items
from ledgermq.cli.session import Session, connected_session
from ledgermq.client.setting_types import ProducerOptions
from ledgermq.client.settings.producers import AccessMode, ChosenCompression
from ledgermq.durations import parse_duration_ms
from ledgermq.errors import InvalidRecord, InvalidRequest, LedgerMQError, MessageTooLarge, OutcomeUnknown

PIECE_RECORDS = 1000
DELIVERY_TIMEOUTS = 4
"""Time limit of a record. It is longer than that of a call, because a full buffer may have to be
sent over a slow line first.

Other records are stored during that time.
"""
REQUEST_TIMEOUT_S_MAX = 30.0
INTERRUPTED_FLUSH_S_MAX = 5.0
COLUMNS = ("partition", "records", "first_offset", "last_offset")
DELAYED_COLUMNS = ("due", "topic", "partition", "handle")


EXAMPLES = (
    "ledgermq produce events < lines.txt",
    "ledgermq produce flights flights.csv --format csv --key carrier",
    "ledgermq produce events rows.jsonl --format jsonl --key user --value payload",
    "ledgermq consume events -e -f jsonl | ledgermq produce copy -f records",
)


class Acks(StrEnum):
    DURABLE = "durable"
    RECEIVED = "received"


Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to send to.", autocompletion=complete_topic)]
File = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE", help="File to send; '-' or left out: stdin.", exists=True, dir_okay=False, allow_dash=True
    ),
]
Form = Annotated[
    str,
    typer.Option(
        "--format",
        "-f",
        metavar="lines|jsonl|csv|records",
        help="How to read the input. records: as `consume --format jsonl` prints them, with headers, tag and time.",
        autocompletion=lambda: list(FORMATS),
    ),
]
KeepPartition = Annotated[
    bool, typer.Option("--keep-partition", help="records: send each to the partition that it names.")
]
Key = Annotated[
    str | None, typer.Option("--key", "-k", metavar="FIELD", help="jsonl: field, csv: column that is the key.")
]
Value = Annotated[
    str | None,
    typer.Option(
        "--value", metavar="FIELD", help="jsonl: field, csv: column that is the value. Default: the whole row."
    ),
]
Separator = Annotated[
    str | None,
    typer.Option("--key-separator", metavar="TEXT", help="lines: separator between key and value; \\t is a tab."),
]
Id = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="FIELD",
        help="jsonl: field, csv: column that is the id, by which a topic with dedup.window.ms recognizes duplicates.",
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="KEY=VALUE", help="Header of every record; repeatable."),
    TAKES_BYTES,
]
Tag = Annotated[str | None, typer.Option("--tag", help="Tag of every record.")]
Ttl = Annotated[
    str | None,
    typer.Option(
        "--ttl",
        metavar="AGE",
        help="Age at which consumers skip a record: 30s, 5m, 1.5h, 7d. Default: what the topic sets.",
    ),
]
Partition = Annotated[
    int | None,
    typer.Option("--partition", "-p", min=0, help="Send every record to this partition. Default: the key decides."),
]
ExpectEnd = Annotated[
    int | None,
    typer.Option(
        "--expect-end",
        metavar="OFFSET",
        min=0,
        help="Store the first record only if the --partition ends at this offset, and each further one right behind"
        " it; otherwise stop, and show where it ends.",
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(
        "--priority",
        min=0,
        help="Level of every record in a topic with priority.levels, 0 the lowest. Default: the lowest.",
    ),
]
AccessModeOption = Annotated[
    AccessMode,
    typer.Option(
        "--access-mode",
        help="Whether the command has the topic for itself: shared with other producers; exclusive, or it fails while"
        " another exclusive producer has the topic; wait_for_exclusive; exclusive_with_fencing takes it from that one.",
    ),
]
ProducerName = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of the exclusive producer, for errors and lists.")
]
AcksOption = Annotated[
    Acks, typer.Option("--acks", help="When a record counts as sent: once stored, or once a broker has received it.")
]
Skip = Annotated[
    int,
    typer.Option(
        "--skip",
        min=0,
        metavar="LINES",
        help="Skip this number of lines, to resume after an interrupted run.",
    ),
]
CompressionOption = Annotated[
    ChosenCompression,
    typer.Option("--compression", "-z", help="Codec of the batches; auto: lz4 where it makes them smaller."),
]


def register(app: typer.Typer) -> None:
    command(app, "produce", examples=EXAMPLES)(produce)


async def produce(
    topic: Name,
    file: File = None,
    form_name: Form = "lines",
    key: Key = None,
    value: Value = None,
    key_separator: Separator = None,
    message_id: Id = None,
    header: Header = None,
    tag: Tag = None,
    ttl: Ttl = None,
    partition: Partition = None,
    keep_partition: KeepPartition = False,
    expect_end: ExpectEnd = None,
    priority: Priority = None,
    delay: DelayOption = None,
    deliver_at: DeliverAtOption = None,
    delay_level: LevelOption = None,
    access_mode: AccessModeOption = "shared",
    name: ProducerName = "ledgermq produce",
    skip: Skip = 0,
    acks: AcksOption = Acks.DURABLE,
    compression: CompressionOption = "auto",
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Send records: one per line, JSON lines, the rows of a CSV file, or whole records as `consume` prints them.

    Delayed records come into the topic when they are due. The handles of the first 100 are printed;
    `ledgermq delayed recall` takes a message back by its handle.
    """
    form, shape = parse_input_format(form_name), Shape(key, value, key_separator, message_id)
    shape.check(form)
    if keep_partition and (form is not InputFormat.RECORDS or partition is not None or priority is not None):
        raise InvalidRequest("--keep-partition is for --format records, without --partition and --priority")
    if expect_end is not None and (partition is None or acks is not Acks.DURABLE):
        raise InvalidRequest("--expect-end is about one partition: choose it with --partition, and keep --acks durable")
    ttl_s = None if ttl is None else parse_duration_ms(ttl, "--ttl", 1) / 1000
    due = parse_delay(delay, deliver_at, delay_level)
    common = Common(tuple(parse_headers(header)), tag, partition, due, ttl_s, priority, keep_partition)
    settings: ProducerOptions = {
        "acks": "durable" if acks is Acks.DURABLE else "received",
        "access_mode": access_mode,
        "name": name,
        "compression": compression,
        "delivery_timeout_s": DELIVERY_TIMEOUTS * timeout_s,
        "request_timeout_s": min(REQUEST_TIMEOUT_S_MAX, timeout_s / 2),
    }
    with closing(open_lines(file)) as source:
        sent = Sent(source.name, skip, "stored" if acks is Acks.DURABLE else "received")
        records = ((source.line_number, common.record(found)) for found in read_records(source, form, shape, skip))
        with summed_up(sent):
            async with connected_session(target, timeout_s, may_make=True) as session:
                session.progress = sent.awaited
                async with session.client.producer(**settings) as producer:
                    await send_all(session, producer, topic, source, records, sent, expect_end)
    show(produce_report(topic, sent), output)


@contextmanager
def summed_up(sent: Sent) -> Iterator[None]:
    """When the block fails or is interrupted, print how far it has come. Raises OutcomeUnknown for an error that leaves
    records in doubt.
    """
    try:
        yield
    except LedgerMQError as error:
        if sent.records or sent.unknown():
            notes().print(sent.summary("error"), markup=False, soft_wrap=True)
        if sent.unknown() and not isinstance(error, OutcomeUnknown):
            raise OutcomeUnknown(f"{sent.unknown():,} records may or may not be stored: {error.message}") from error
        raise
    except asyncio.CancelledError:
        notes().print(sent.summary("interruption"), markup=False, soft_wrap=True)
        raise


@dataclass(frozen=True, slots=True)
class Common:
    """The values that all records of a run share."""

    headers: tuple[tuple[str, bytes], ...]
    tag: str | None
    partition: int | None
    due: Delay
    ttl_s: float | None
    priority: int | None
    keep_partition: bool

    def record(self, found: InputRecord) -> ledgermq.Record:
        return ledgermq.Record(
            found.value,
            found.key,
            found.headers + self.headers or None,
            found.tag if self.tag is None else self.tag,
            found.timestamp_us,
            found.partition if self.keep_partition else self.partition,
            self.ttl_s,
            self.due.delay,
            self.due.deliver_at,
            self.due.delay_level,
            found.id,
            self.priority,
        )


Lines = Iterator[tuple[int, ledgermq.Record]]
"""Records of the input, each with the number of its last line."""


async def send_all(
    session: Session,
    producer: ledgermq.Producer,
    topic: str,
    source: LineSource,
    records: Lines,
    sent: Sent,
    expect_end: int | None,
) -> None:
    """Send the records of the input. `expect_end`: where the partition ends before the first one. Raises the first
    error of a record, or of the input.

    Records that were read before the error are sent nevertheless.
    """
    is_begun, ends = False, repeat(None) if expect_end is None else count(expect_end)
    by_hand = source.size is None and sys.stdin.isatty()
    if by_hand:
        notes().print("Type messages, one a line. Ctrl-D ends.")
    with progress_of_bytes() if source.size else progress_of_items(quiet=by_hand) as bar:
        session.console = bar.console
        task = bar.add_task(f"Sending {source.name}", total=source.size, note="")
        try:
            async for piece in in_pieces(source, records, PIECE_RECORDS):
                if not is_begun:
                    await send_piece(producer, topic, source, piece[:1], sent, ends)
                    await flush(
                        producer, sent
                    )  # the topic is known now: a record that is too large is found before later ones are sent
                    piece, is_begun = piece[1:], True
                await send_piece(producer, topic, source, piece, sent, ends)
                sent.raise_failure()
                done = source.bytes_read if source.size else sent.records
                bar.update(task, completed=done, note=f"{sent.records:,} records stored")
        except asyncio.CancelledError:
            if not session.expired:  # Ctrl-C
                with suppress(LedgerMQError):
                    await producer.flush(INTERRUPTED_FLUSH_S_MAX)
            raise
        except Exception:
            await flush(producer, sent)
            raise
        await flush(producer, sent)


async def send_piece(
    producer: ledgermq.Producer,
    topic: str,
    source: LineSource,
    piece: Iterable[tuple[int, ledgermq.Record]],
    sent: Sent,
    ends: Iterator[int | None],
) -> None:
    for line, record in piece:
        try:
            delivery = producer.send(topic, *record, expect_end=next(ends))
        except (InvalidRecord, MessageTooLarge) as error:
            raise at_line(error, source.name, line) from error
        sent.add(delivery, line)
        await producer.wait_for_room()


async def flush(producer: ledgermq.Producer, sent: Sent) -> None:
    """Wait for the records on their way. Raises the first error of a record."""
    with suppress(LedgerMQError):  # other errors may be raised here; the first record's error is raised below
        await producer.flush()
    sent.raise_failure()


def parse_headers(pairs: Iterable[str] | None) -> Iterator[tuple[str, bytes]]:
    """Parse `KEY=VALUE` pairs. A value may be any bytes that a shell can pass; a key is text.

    Raises InvalidRequest.
    """
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidRequest(f"--header {pair!r}: expected KEY=VALUE")
        # Python represents arguments that are not UTF-8 with surrogates
        if any("\ud800" <= char <= "\udfff" for char in key):
            raise InvalidRequest(f"--header {pair!r}: the key must be UTF-8 text")
        yield key, value.encode(errors="surrogateescape")


def produce_report(topic: str, sent: Sent) -> Report:
    rows = [
        {
            "partition": partition,
            "records": run.records,
            "first_offset": run.first_offset,
            "last_offset": run.last_offset,
        }
        for partition, run in sorted(sent.partitions.items())
    ]
    facts = {"topic": topic, "records": sent.records}
    if sent.duplicates:
        facts["duplicates"] = sent.duplicates
    delayed = Rows("delayed", DELAYED_COLUMNS, [sent_row(result) for result in sent.delayed], if_any=True)
    tables = [Rows("partitions", COLUMNS, rows)] if rows else []
    return Report("", facts, [*tables, delayed] if sent.delayed else tables)

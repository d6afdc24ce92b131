"""`ledgermq produce`: send the records of a file or of stdin, and say where they are stored."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import ledgermq
from ledgermq.cli.completion import complete_topic
from ledgermq.cli.inputs import InputFormat, InputRecord, Shape, read_records
from ledgermq.cli.lines import LineSource, in_pieces, open_lines
from ledgermq.cli.options import DEFAULT_TARGET, DEFAULT_TIMEOUT_S, Debug, Output, OutputFormat, Target, Timeout
from ledgermq.cli.report import Report, Rows, show
from ledgermq.cli.reporting import command
from ledgermq.cli.session import connected
from ledgermq.cli.terminal import notes, progress_of_bytes, progress_of_items
from ledgermq.errors import InvalidRequest, LedgerMQError

PIECE_RECORDS = 1000
DELIVERY_TIMEOUTS = 4
"""A record has more time than a call: before it a whole buffer may have to go over a slow line."""
COLUMNS = ("partition", "records", "first_offset", "last_offset")


class Acks(StrEnum):
    DURABLE = "durable"
    RECEIVED = "received"


class Compression(StrEnum):
    AUTO = "auto"
    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to send to.", autocompletion=complete_topic)]
File = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="What to send; stdin if left out, or '-'.", exists=True, dir_okay=False, allow_dash=True),
]
Form = Annotated[InputFormat, typer.Option("--format", "-f", help="How to read the input.")]
Key = Annotated[str | None, typer.Option("--key", "-k", metavar="FIELD", help="jsonl: field, csv: column that is the key.")]
Value = Annotated[
    str | None, typer.Option("--value", metavar="FIELD", help="jsonl: field, csv: column that is the value; else the whole row.")
]
Separator = Annotated[str | None, typer.Option("--key-separator", metavar="TEXT", help="lines: what stands between key and value.")]
Header = Annotated[list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="For every record; repeatable.")]
Tag = Annotated[str | None, typer.Option("--tag", help="For every record.")]
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Send all to this partition; else the key decides.")]
AcksOption = Annotated[Acks, typer.Option("--acks", help="When a record counts as sent: stored, or only received.")]
CompressionOption = Annotated[Compression, typer.Option("--compression", "-z", help="Of the batches; auto: lz4 where it pays.")]


def register(app: typer.Typer) -> None:
    command(app, "produce")(produce)


async def produce(
    topic: Name,
    file: File = None,
    form: Form = InputFormat.LINES,
    key: Key = None,
    value: Value = None,
    key_separator: Separator = None,
    header: Header = None,
    tag: Tag = None,
    partition: Partition = None,
    acks: AcksOption = Acks.DURABLE,
    compression: CompressionOption = Compression.AUTO,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
) -> None:
    """Send records: one a line, JSON lines, or the rows of a CSV file."""
    shape = Shape(key, value, key_separator)
    shape.check(form)
    common = Common(tuple(parse_headers(header)), tag, partition)
    sent = Sent()
    with closing(open_lines(file)) as source:
        records = (common.record(found) for found in read_records(source, form, shape))
        async with connected(target, timeout_s, may_make=True) as client:
            settings = {"acks": acks.value, "compression": compression.value, "delivery_timeout_s": DELIVERY_TIMEOUTS * timeout_s}
            try:
                async with client.producer(**settings) as producer:
                    await send_all(client, producer, topic, source, records, sent)
            except LedgerMQError:
                sent.tell_of_the_stored()
                raise
    show(produce_report(topic, sent), output)


@dataclass(frozen=True, slots=True)
class Common:
    """What all records of a run have alike."""

    headers: tuple[tuple[str, bytes], ...]
    tag: str | None
    partition: int | None

    def record(self, found: InputRecord) -> ledgermq.Record:
        return ledgermq.Record(found.value, found.key, self.headers or None, self.tag, None, self.partition)


async def send_all(
    client: ledgermq.Client, producer: ledgermq.Producer, topic: str, source: LineSource, records: Iterator[ledgermq.Record], sent: Sent
) -> None:
    """Raises the first error of a record, or of the input; what was sent before it is flushed."""
    reached = False
    with progress_of_bytes() if source.size else progress_of_items() as bar:
        task = bar.add_task(f"Sending {source.name}", total=source.size, note="")
        try:
            async for piece in in_pieces(source, records, PIECE_RECORDS):
                if not reached:
                    await client.describe_cluster()  # a cluster that is down is told sooner than by a record that is given up
                    reached = True
                sent.add(await producer.send_many(topic, piece))
                sent.collect()
                done = source.bytes_read if source.size else sent.stored
                bar.update(task, completed=done, note=f"{sent.stored:,} records stored")
        finally:
            try:
                await producer.flush()
            finally:
                sent.collect()


@dataclass(slots=True)
class StoredRun:
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None


class Sent:
    """The deliveries of a run. Only those that are not settled yet are kept; the producer's buffer bounds them."""

    def __init__(self) -> None:
        self.partitions: dict[int, StoredRun] = {}
        self.stored = 0
        self._waiting: deque[ledgermq.Delivery] = deque()

    def add(self, deliveries: Iterable[ledgermq.Delivery]) -> None:
        self._waiting.extend(deliveries)

    def collect(self) -> None:
        """Take in what is settled, in the order of sending. Raises the first failure."""
        while self._waiting and self._waiting[0].done():
            self._take(self._waiting.popleft().result())

    def _take(self, result: ledgermq.SendResult) -> None:
        run = self.partitions.setdefault(result.partition, StoredRun())
        run.records += 1
        self.stored += 1
        if result.offset >= 0:
            run.first_offset = result.offset if run.first_offset is None else min(run.first_offset, result.offset)
            run.last_offset = max(run.last_offset or 0, result.offset)

    def tell_of_the_stored(self) -> None:
        """After an error: how far it went."""
        if self.stored:
            notes().print(f"{self.stored:,} records were stored before the error")


def parse_headers(pairs: Iterable[str] | None) -> Iterator[tuple[str, bytes]]:
    """`KEY=VALUE` pairs; a value may be any bytes that a shell can pass on, a key is text. Raises InvalidRequest."""
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidRequest(f"--header {pair!r}: KEY=VALUE is needed")
        if any("\ud800" <= char <= "\udfff" for char in key):  # how Python shows arguments that are not UTF-8
            raise InvalidRequest(f"--header {pair!r}: the key is text, in UTF-8")
        yield key, value.encode(errors="surrogateescape")


def produce_report(topic: str, sent: Sent) -> Report:
    rows = [
        {"partition": partition, "records": run.records, "first_offset": run.first_offset, "last_offset": run.last_offset}
        for partition, run in sorted(sent.partitions.items())
    ]
    facts = {"topic": topic, "records": sent.stored}
    return Report("", facts, [Rows("partitions", COLUMNS, rows)] if rows else [])

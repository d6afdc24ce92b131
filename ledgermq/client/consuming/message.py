"""Messages that a consumer returns, made from validated Arrow batches column by column."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any, NamedTuple, TypeVar, cast

import pyarrow as pa

from ledgermq.buffers import Buffer
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.record import datetime_of
from ledgermq.errors import CorruptFrame, InvalidRequest, LedgerMQError
from ledgermq.protocol.batch_header import check_crc
from ledgermq.protocol.records import SCHEMA, decode_batch

MessageHeaders = tuple[tuple[str, bytes | None], ...]

TABLE_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        SCHEMA.field("timestamp"),
        SCHEMA.field("timestampType"),
        SCHEMA.field("headers"),
        SCHEMA.field("tag"),
    ]
)
"""Columns of the table that `fetch_arrow` returns: those of Spark's Kafka source in its order,
then the tag.
"""


class Message(NamedTuple):
    """One record as a program reads it. `value` is None for a tombstone; `timestamp_us` is None if
    the producer gave no time.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: MessageHeaders
    timestamp_us: int | None
    tag: str | None

    @property
    def timestamp(self) -> datetime | None:
        """Return the timestamp in UTC."""
        return None if self.timestamp_us is None else datetime_of(self.timestamp_us)

    def ack(self) -> object:
        """Acknowledge the message; only for messages of a group (see `GroupMessage`, `QueueMessage`).

        Raises InvalidRequest.
        """
        raise InvalidRequest(
            "this consumer has no group, so messages cannot be acknowledged; use client.consumer(…, group=…)"
        )

    def nack(self, delay: float | timedelta | None = None) -> object:
        """Refuse the message; only for messages of a group (see `GroupMessage`, `QueueMessage`). Without one,
        use `seek` to go back.

        Raises InvalidRequest.
        """
        raise InvalidRequest(
            "this consumer has no group, so messages cannot be refused; use seek to go back, or client.consumer(…,"
            " group=…)"
        )


def decode_run(data: Buffer, crc: int, record_count: int, decoded_bytes_max: int, where: str) -> pa.RecordBatch:
    """Validate a fetched batch fully, and return its rows.

    Raises CorruptFrame or MessageTooLarge, with `where` in its text.
    """
    try:
        check_crc(data, crc)
        rows = decode_batch(data, decoded_bytes_max)
        if rows.num_rows != record_count:
            raise CorruptFrame(f"it has {rows.num_rows} records, its header says {record_count}")
    except LedgerMQError as error:
        raise type(error)(f"{where}: {error.message}; seek past it to continue") from error
    return rows


M = TypeVar("M", bound=Message)

Offsets = int | Sequence[int]
"""The offset of the first of consecutive rows, or that of each row."""


def partition_of(message: Message) -> TopicPartition:
    """Return the origin of the message."""
    return TopicPartition(message.topic, message.partition)


def messages_of(rows: pa.RecordBatch, topic: str, partition: int, offsets: Offsets) -> list[Message]:
    """Make messages from rows."""
    return messages_as(Message, rows, topic, partition, offsets)


def messages_as(kind: type[M], rows: pa.RecordBatch, topic: str, partition: int, offsets: Offsets) -> list[M]:
    """Make messages like `messages_of`, as instances of a subclass of `Message`."""
    with _uncollected():
        return _messages(kind, rows, topic, partition, offsets)


def offsets_of(offsets: Offsets, count: int) -> Sequence[int]:
    """Return the offset of each row."""
    return range(offsets, offsets + count) if isinstance(offsets, int) else offsets


def _messages(kind: type[M], rows: pa.RecordBatch, topic: str, partition: int, offsets: Offsets) -> list[M]:
    count = rows.num_rows
    columns = (
        repeat(topic, count),
        repeat(partition, count),
        offsets_of(offsets, count),
        _values(rows.column("key")),
        rows.column("value").to_pylist(),
        _headers(rows.column("headers")),
        rows.column("timestamp").cast(pa.int64()).to_pylist(),
        _values(rows.column("tag")),
    )
    # `_make` would check each length again, in Python; there are as many columns as fields.
    return list(map(cast(Any, tuple.__new__), repeat(kind), zip(*columns, strict=True)))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause Python's garbage collector. Otherwise thousands of new messages, none of them garbage,
    would make it scan all objects again and again.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _values(column: pa.Array) -> list[Any] | repeat[None]:
    return repeat(None, len(column)) if column.null_count == len(column) else column.to_pylist()


def _headers(column: pa.Array) -> list[MessageHeaders] | repeat[MessageHeaders]:
    if column.null_count == len(column):
        return repeat((), len(column))
    return [tuple((pair["key"], pair["value"]) for pair in row or () if pair is not None) for row in column.to_pylist()]


def table_of(
    rows: pa.RecordBatch, topic: str, partition: int, offsets: Offsets, columns: Sequence[str] = TABLE_SCHEMA.names
) -> pa.RecordBatch:
    """Return the rows with topic, partition and offset added: these columns of `TABLE_SCHEMA`."""
    count = rows.num_rows
    made = {
        "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), count),
        "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": lambda: (
            pa.array(numbers, pa.int64())
            if not isinstance(numbers := offsets_of(offsets, count), range)
            else pa.arange(numbers.start, numbers.start + count)
        ),
    }
    schema = pa.schema([TABLE_SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays(
        [made[name]() if name in made else rows.column(name) for name in columns], schema=schema
    )

"""Messages that a consumer returns, made from validated Arrow batches column by column."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import pyarrow as pa

from ledgermq.buffers import Buffer
from ledgermq.client.context import Replier
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.message_id import MessageId
from ledgermq.client.messages.record import Headers, datetime_of, value_of
from ledgermq.client.settings.serializers import FromBytes, V
from ledgermq.errors import BadValue, CorruptFrame, InvalidRequest, LedgerMQError
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import SCHEMA, decode_batch
from ledgermq.protocol.levels import LEVELS_MAX, PRIORITY, nearest_level

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


class Message(NamedTuple, Generic[V]):
    """One record as a program reads it. `value` is None for a tombstone; `timestamp_us` is None if
    the producer gave no time.

    To type checkers, a consumer with `deserializer=Serializer.pydantic(Order)` returns `Message[Order]`; where
    a topic has tombstones, its value may be None nevertheless. `Message` alone means Message[Any].

    With the setting `deserializer`, `value` is what that returns, and is made when the program first reads
    it: reading it raises BadValue if the bytes cannot be converted. `raw` is always bytes.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: V
    headers: MessageHeaders
    timestamp_us: int | None
    tag: str | None

    @property
    def id(self) -> MessageId:
        """Return the id of the message, by which `client.find` finds it."""
        return MessageId(self.topic, self.partition, self.offset)

    @property
    def timestamp(self) -> datetime | None:
        """Return the timestamp in UTC."""
        return None if self.timestamp_us is None else datetime_of(self.timestamp_us)

    @property
    def priority(self) -> int | None:
        """Return the priority that its producer chose; None: none."""
        text = value_of(self.headers, PRIORITY)
        return None if text is None else nearest_level(text, LEVELS_MAX)

    @property
    def raw(self) -> bytes | None:
        """Return the value's bytes: after interceptors, before the deserializer."""
        return cast("bytes | None", self[4])

    @property
    def stored(self) -> Message:
        """Return the message as it is stored, before any interceptor or deserializer."""
        return self

    def reply(self, value: Any, headers: Headers | None = None) -> Awaitable[Any]:
        """Reply to a request of `client.request`. Await the result for the `SendResult` of the reply, or leave it: it
        is sent all the same. Call it in the client's event loop; without one use `reply` of a `ledgermq.sync` client.

        Raises InvalidRequest if the message is no request, or was not read by a client in this process.
        """
        replier: Replier | None = getattr(self, "replier", None)  # an annotation in this class would make it a field
        if replier is None:
            raise InvalidRequest("only a message that a client of this process has read can be replied to")
        return replier.reply(self, value, headers)

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


Interceptor = Callable[[Message], Message]
"""An interceptor of consumers: a message -> the message that the program receives."""


class Opened:
    """Part of the messages of a consumer that has a deserializer or interceptors.

    `value` is made when it is first read, so a bad value stops nothing but the code that reads it. The tuple
    holds bytes; what copies a message for another topic reads `stored`.
    """

    deserializer: ClassVar[FromBytes | None]
    interceptors: ClassVar[Sequence[Interceptor]]

    def intercepted(self) -> Any:
        """Return the message that the program receives. If an interceptor fails, that is this one, whose `value`
        raises the error.
        """
        message: Any = self
        try:
            for interceptor in self.interceptors:
                message = _same_place(self, interceptor(message))
        except Exception as error:
            self.__dict__["failure"] = error
            return self
        if message is not self:
            message.__dict__["stored"] = self.stored
        return message

    @property
    def value(self) -> Any:
        made = self.__dict__
        if "value" not in made:
            made["value"] = self._made()
        return made["value"]

    def _made(self) -> Any:
        if (failure := self.__dict__.get("failure")) is not None:
            raise self._bad("an interceptor refuses it", failure) from failure
        data = cast(Message, self)[4]
        if data is None or self.deserializer is None:
            return data
        try:
            if (read := getattr(self.deserializer, "from_record", None)) is not None:
                return read(data, cast(Message, self).headers or ())
            return self.deserializer.from_bytes(data)
        except Exception as error:
            raise self._bad("the deserializer refuses its value", error) from error

    def _bad(self, what: str, error: Exception) -> BadValue:
        record = self.stored
        bad = BadValue(
            f"message {partition_of(record)}, offset {record.offset}: {what}: {type(error).__name__}: {error}"
        )
        bad.record = record
        return bad

    @property
    def stored(self) -> Message:
        found = self.__dict__.get("stored")
        return Message._make(cast(Message, self)) if found is None else found

    def __reduce__(self) -> tuple[Callable[[Iterable[Any]], Message], tuple[tuple[Any, ...]]]:
        return _as_stored(cast(Message, self))


def _same_place(before: Any, after: Any) -> Any:
    """Check what an interceptor returned. Raises TypeError, ValueError."""
    if type(after) is not type(before):
        raise TypeError(f"an interceptor must return a message, made with message._replace(…), not {after!r:.100}")
    if after[:3] != before[:3]:
        raise ValueError("an interceptor must not change topic, partition or offset")
    return after


def opened(
    kind: type[M], deserializer: FromBytes | None, interceptors: Sequence[Interceptor], replier: Replier | None = None
) -> type[M]:
    """Return the class of a consumer's messages. `replier`: sends their replies."""
    made: dict[str, Any] = {"replier": replier}
    if deserializer is None and not interceptors:
        return type(kind.__name__, (kind,), made | {"__slots__": (), "__reduce__": _as_stored})
    made |= {"deserializer": deserializer, "interceptors": tuple(interceptors)}
    return type(kind.__name__, (Opened, kind), made)


def _as_stored(message: Message) -> tuple[Callable[[Iterable[Any]], Message], tuple[tuple[Any, ...]]]:
    """Pickle a message as the plain `Message` as it is stored."""
    return Message._make, (tuple(message.stored),)


def made_as(kind: type[M], message: Message) -> M:
    """Make a message of another kind: it is delivered again, so interceptors are called again."""
    return _intercepted([kind._make(message.stored)], kind)[0]


def _intercepted(messages: list[M], kind: type[M]) -> list[M]:
    if not getattr(kind, "interceptors", ()):
        return messages
    return [cast(Opened, message).intercepted() for message in messages]


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
        messages = _messages(kind, rows, topic, partition, offsets)
    return _intercepted(messages, kind)


def messages_of_table(table: pa.Table) -> list[Message]:
    """Make messages from a table with the columns of `TABLE_SCHEMA`."""
    made: list[Message] = []
    with _uncollected():
        for rows in table.to_batches():
            origins = rows.column("topic").to_pylist(), rows.column("partition").to_pylist()
            made += _made(Message, rows, *origins, rows.column("offset").to_pylist())
    return made


def offsets_of(offsets: Offsets, count: int) -> Sequence[int]:
    """Return the offset of each row."""
    return range(offsets, offsets + count) if isinstance(offsets, int) else offsets


def _messages(kind: type[M], rows: pa.RecordBatch, topic: str, partition: int, offsets: Offsets) -> list[M]:
    count = rows.num_rows
    return _made(kind, rows, repeat(topic, count), repeat(partition, count), offsets_of(offsets, count))


def _made(
    kind: type[M], rows: pa.RecordBatch, topics: Iterable[str], partitions: Iterable[int], offsets: Iterable[int]
) -> list[M]:
    columns = (
        topics,
        partitions,
        offsets,
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
    return [
        tuple((pair["key"] or "", pair["value"]) for pair in row or () if pair is not None)  # names were null once
        for row in column.to_pylist()
    ]


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

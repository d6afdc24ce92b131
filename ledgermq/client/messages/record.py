"""Records as a program gives them. Each is checked alone, before it joins others, so that an
invalid record fails no other.

Row: (key, value, headers, timestamp in µs since the epoch, tag), the columns of the record schema
that a producer fills.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

import pyarrow as pa

from ledgermq.client.messages.expiry import with_ttl
from ledgermq.errors import InvalidRecord
from ledgermq.protocol.batches.record_rules import check_header_name, check_timestamp
from ledgermq.protocol.levels import PRIORITY, check_priority
from ledgermq.protocol.naming.message_ids import MESSAGE_ID, check_id

Bytes = bytes | bytearray | memoryview | str
Headers = Mapping[str, Bytes | None] | Iterable[tuple[str, Bytes | None]]
Row = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]] | None, int, str | None]


class Given(bytes):
    """The value of a header that a program gave as an argument, such as an id: it counts on what that does."""


class PartitionAt(int):
    """A partition that a program chose for a record, together with the end at which the record has to be stored."""

    expect_end: int

    def __new__(cls, partition: int, expect_end: int) -> Self:
        made = super().__new__(cls, partition)
        made.expect_end = expect_end
        return made

    @classmethod
    def of(cls, partition: int | None, expect_end: int | None) -> int | None:
        """Return the partition, with the end if there is one."""
        return partition if partition is None or expect_end is None else cls(partition, expect_end)


ROW_OVERHEAD_BYTES = 200
"""Estimated memory of a row besides its data, for Python's objects."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Record(NamedTuple):
    """A record that `send_many` accepts, with the arguments of `send`."""

    value: Any
    key: Bytes | None = None
    headers: Headers | None = None
    tag: str | None = None
    timestamp: datetime | int | None = None
    """A datetime with a time zone, or microseconds since the epoch; None: now."""
    partition: int | None = None
    ttl: float | timedelta | None = None
    """Seconds from the timestamp on, or a timedelta, after which consumers skip it; None: what the topic sets."""
    delay: float | timedelta | None = None
    """Seconds, or a timedelta: it is delivered so much later."""
    deliver_at: datetime | None = None
    """It is delivered at this time."""
    delay_level: int | None = None
    """It is delivered after the delay of one of the levels 1 to 18."""
    id: Bytes | None = None
    """By which a topic with `dedup.window.ms` recognizes a message that it has stored already."""
    priority: int | None = None
    """Level of a topic with `priority.levels`, 0 the lowest; None: that of the lowest."""


class Outgoing(NamedTuple):
    """A record that a transactional handler returns, and that interceptors of producers get, with the arguments
    of `send`.
    """

    topic: str
    value: Any
    key: Bytes | None = None
    headers: Headers | None = None
    tag: str | None = None
    timestamp: datetime | int | None = None
    """A datetime with a time zone, or microseconds since the epoch; None: now."""
    partition: int | None = None
    ttl: float | timedelta | None = None
    """Seconds from the timestamp on, or a timedelta, after which consumers skip it; None: what the topic sets."""


def datetime_of(timestamp_us: int) -> datetime:
    return _EPOCH + timestamp_us * _MICROSECOND


def microseconds_of(timestamp: datetime) -> int:
    """Return the timestamp in microseconds. Raises InvalidRecord for a datetime without a time
    zone, because it would mean a different time on another machine.
    """
    if timestamp.tzinfo is None:
        raise InvalidRecord(
            f"timestamp {timestamp.isoformat()} has no time zone; use datetime.now(UTC) or microseconds since the epoch"
        )
    return (timestamp - _EPOCH) // _MICROSECOND


def as_bytes(what: str, given: Any) -> bytes | None:
    """Return bytes unchanged, and text as UTF-8. Raises InvalidRecord."""
    if given is None or type(given) is bytes or type(given) is Given:
        return given
    if isinstance(given, str):
        return _utf8(what, given)
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise InvalidRecord(f"the {what} must be bytes or text, not {type(given).__name__}")


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"the {what} is not valid Unicode text: {error}") from error


def row_of(
    value: Any,
    key: Any,
    headers: Headers | None,
    tag: str | None,
    timestamp: datetime | int | None,
    now_us: int,
    ttl: float | timedelta | None = None,
) -> Row:
    """Check a record and return its row. Raises InvalidRecord, naming the invalid field."""
    if type(value) is not bytes:
        value = as_bytes("value", value)
    if type(key) is not bytes:
        key = as_bytes("key", key)
    if tag is not None:
        if not isinstance(tag, str):
            raise InvalidRecord(f"the tag must be text, not {type(tag).__name__}")
        _utf8("tag", tag)
    moment = now_us if timestamp is None else _checked_timestamp(timestamp)
    pairs = checked_headers(headers) if headers is not None else None
    return key, value, pairs if ttl is None else with_ttl(pairs, ttl, moment), moment, tag


def row_bytes(row: Row) -> int:
    """Return the bytes of key, value and headers, which a topic's record limit counts."""
    key, value, headers, _, _ = row
    size = (len(key) if key else 0) + (len(value) if value else 0)
    for name, data in headers or ():
        size += (len(name) if name.isascii() else len(name.encode())) + (len(data) if data else 0)
    return size


def _checked_timestamp(timestamp: Any) -> int:
    return microseconds_of(timestamp) if isinstance(timestamp, datetime) else check_timestamp(timestamp)


def checked_headers(headers: Headers) -> list[tuple[str, bytes | None]] | None:
    """Return headers as pairs; None: there are none. Raises InvalidRecord."""
    pairs: list[tuple[str, bytes | None]] = []
    try:
        for name, data in headers.items() if isinstance(headers, Mapping) else headers:
            if type(name) is not str or not name.isascii():
                _utf8("header's key", check_header_name(name))
            pairs.append((name, data if type(data) is bytes else as_bytes(f"header {name!r}", data)))
    except (TypeError, ValueError) as error:
        raise InvalidRecord(f"headers must be a mapping or pairs of key and value: {error}") from error
    return pairs or None


def readable_again(headers: Headers | None) -> Headers | None:
    """Return headers that may be read several times, which those of a generator may not."""
    return list(headers) if isinstance(headers, Iterator) else headers


def pairs_of(headers: Headers | None) -> list[tuple[str, Bytes | None]]:
    """Return headers as pairs. Raises InvalidRecord."""
    return [] if headers is None else [*(checked_headers(headers) or ())]


def value_of(headers: Iterable[tuple[str, bytes | None]], wanted: str) -> bytes | None:
    """Return the value of the first header of this name; None: it has none, or there is no such header."""
    return next((value for name, value in headers if name == wanted), None)


def headers_of(
    headers: Headers | None, message_id: Bytes | None, priority: int | None, partition: int | None
) -> Headers | None:
    """Return the headers of a record with its id and its priority; None: it has none. Raises InvalidRecord."""
    if message_id is not None:
        headers = _with_given(headers, "an id", MESSAGE_ID, check_id(as_bytes("id", message_id)))
    if priority is not None:
        level = check_priority(priority)
        if partition is not None:
            raise InvalidRecord("a priority chooses among the partitions of its level: leave out the partition")
        headers = _with_given(headers, "a priority", PRIORITY, b"%d" % level)
    return headers


def _with_given(headers: Headers | None, what: str, name: str, value: bytes) -> Headers:
    pairs = pairs_of(headers)
    if any(other == name for other, _ in pairs):
        raise InvalidRecord(f"the record has both {what} and the header {name}: leave out one of them")
    return [*pairs, (name, Given(value))]


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """Return the rows of a record batch that has the record schema, as `row_of` makes them."""
    names = ("key", "value", "headers", "timestamp", "tag")
    columns = [batch.column(name) for name in names]
    columns[3] = columns[3].cast(pa.int64())
    for key, value, pairs, timestamp_us, tag in zip(*(column.to_pylist() for column in columns), strict=True):
        headers = None if pairs is None else [(pair["key"], pair["value"]) for pair in pairs]
        yield key, value, headers, timestamp_us, tag

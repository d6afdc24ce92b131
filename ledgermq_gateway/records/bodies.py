"""Decode the records of a body. A body is decoded and checked as a whole before anything is sent.

    application/json                       {"records": [record, …]}
    application/x-ndjson                   a record in each line
    application/octet-stream               one record; headers LedgerMQ-Key, LedgerMQ-Tag, LedgerMQ-Header-NAME
    application/vnd.apache.arrow.stream    columns as `Producer.send_batch` takes them

A record is the form of `ledgermq.json_records`, and what only a producer says: `value_json`, `delay_ms`, `deliver_at`,
`ttl_ms`, `priority`, `id`.
"""

from __future__ import annotations

from binascii import Error as NoBase64
from binascii import a2b_base64
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ledgermq.client.messages.due import HORIZON
from ledgermq.client.messages.record import Record, datetime_of, headers_of, row_of
from ledgermq.client.producing.arrow.columns import column_of
from ledgermq.errors import CorruptFrame, InvalidRecord
from ledgermq.protocol.batches.batch_header import check_uncompressed
from ledgermq_gateway.http.problems import Problem

RESERVED = "ledgermq."
HEADER_PREFIX = "ledgermq-header-"
_SECOND_MS = 1000
DELAY_MS_MAX = HORIZON // timedelta(milliseconds=1)

_CLOCKS_DIFFER = timedelta(minutes=5)

Base64 = Annotated[str, Meta(description="Bytes in base64.")]
Time = Annotated[datetime, Meta(tz=True)]
Whole = Annotated[int, Meta(ge=0)]


class HeaderIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """A header of a record: its name, and one of the three forms of its value."""

    key: str
    value: str | UnsetType | None = UNSET
    value_base64: Base64 | UnsetType = UNSET
    value_json: Raw | UnsetType = UNSET


class RecordIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """A record to write: exactly one of `value`, `value_base64` and `value_json`; at most one form of the key. A value
    of null is a tombstone. `value_json` is stored byte for byte. `topic` and `offset` are ignored: what was read can be
    written again.
    """

    value: str | UnsetType | None = UNSET
    value_base64: Base64 | UnsetType = UNSET
    value_json: Raw | UnsetType = UNSET
    key: str | UnsetType | None = UNSET
    key_base64: Base64 | UnsetType = UNSET
    key_json: Raw | UnsetType = UNSET
    headers: list[HeaderIn] = []
    tag: str | None = None
    timestamp: Time | None = None
    timestamp_us: int | None = None
    partition: Whole | None = None
    topic: str | None = None
    offset: int | None = None
    id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    ttl_ms: Annotated[int, Meta(ge=1)] | None = None
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] | None = None
    deliver_at: Time | None = None


class RecordsIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a request that writes records."""

    records: Annotated[list[RecordIn], Meta(min_length=1)]


_types: Any = pa.types
_PLAIN = (
    _types.is_null,
    _types.is_string,
    _types.is_binary,
    _types.is_large_string,
    _types.is_large_binary,
    _types.is_integer,
    _types.is_timestamp,
    _types.is_list,
    _types.is_large_list,
    _types.is_struct,
    _types.is_map,
)
_records = msgspec.json.Decoder(RecordsIn)
_record = msgspec.json.Decoder(RecordIn)


def decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Return what the JSON is. Raises Problem (400), which says where it is wrong."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem("INVALID_REQUEST", f"the body cannot be read: {error}") from None
    except RecursionError:
        raise Problem("INVALID_REQUEST", "the body cannot be read: it is nested too deeply") from None


def records_of_json(body: bytes, now_us: int, count_max: int) -> list[Record]:
    given = decode(_records, body).records
    return converted(given, now_us, count_max)


def records_of_lines(body: bytes, now_us: int, count_max: int) -> list[Record]:
    lines = [line for line in body.split(b"\n") if line.strip()]
    if len(lines) > count_max:
        raise _too_many(len(lines), count_max)
    if not lines:
        raise Problem("INVALID_REQUEST", "the body has no record")
    given = []
    for number, line in enumerate(lines):
        try:
            given.append(decode(_record, line))
        except Problem as error:
            raise Problem(error.code, f"record {number}: {error.detail}") from None
    return converted(given, now_us, count_max)


def converted(given: Sequence[RecordIn], now_us: int, count_max: int) -> list[Record]:
    """Return records that the producer takes. Raises Problem (400, 413)."""
    if len(given) > count_max:
        raise _too_many(len(given), count_max)
    found = []
    for number, record in enumerate(given):
        try:
            found.append(record_of(record, now_us))
        except InvalidRecord as error:
            raise Problem("INVALID_RECORD", f"record {number}: {error.message}", status=400) from None
    return found


def _too_many(count: int, count_max: int) -> Problem:
    return Problem("BODY_TOO_LARGE", f"{count} records in one request: send {count_max} at most")


def record_of(given: RecordIn, now_us: int) -> Record:
    """Return a record that the producer takes. Raises InvalidRecord."""
    forms = [form for form in (given.value, given.value_base64, given.value_json) if form is not UNSET]
    if len(forms) != 1:
        raise InvalidRecord("give exactly one of value, value_base64 and value_json; a value of null is a tombstone")
    timestamp: datetime | int | None = given.timestamp
    if given.timestamp_us is not None:
        if timestamp is not None:
            raise InvalidRecord("give either timestamp or timestamp_us")
        timestamp = given.timestamp_us
    record = Record(
        _bytes("value", given.value, given.value_base64, given.value_json),
        _bytes("key", given.key, given.key_base64, given.key_json),
        [_header(header) for header in given.headers] or None,
        given.tag,
        timestamp,
        given.partition,
        None if given.ttl_ms is None else given.ttl_ms / _SECOND_MS,
        None if given.delay_ms is None else given.delay_ms / _SECOND_MS,
        given.deliver_at,
        None,
        given.id,
        given.priority,
    )
    if timestamp is not None or given.ttl_ms is not None or given.id is not None or given.priority is not None:
        _check_unusual(record, now_us)
    if (given.delay_ms is not None or given.deliver_at is not None) and (
        timestamp is not None or (given.delay_ms is not None and given.deliver_at is not None)
    ):
        raise InvalidRecord("give only one of delay_ms and deliver_at, and no timestamp, which is the due time then")
    if given.deliver_at is not None and given.deliver_at - datetime_of(now_us) > HORIZON - _CLOCKS_DIFFER:
        raise InvalidRecord(f"deliver_at is more than {HORIZON.days} days ahead")
    return record


def _check_unusual(record: Record, now_us: int) -> None:
    """Check what the producer would refuse only after it has queued the records before this one."""
    headers = headers_of(record.headers, record.id, record.priority, record.partition)
    row_of(record.value, record.key, headers, record.tag, record.timestamp, now_us, record.ttl)


def _header(given: HeaderIn) -> tuple[str, bytes | None]:
    check_name(given.key)
    return given.key, _bytes(f"header {given.key!r}", given.value, given.value_base64, given.value_json)


def check_name(name: str) -> None:
    """Raise InvalidRecord for a header that only fields of a record may set."""
    if name.startswith(RESERVED):
        raise InvalidRecord(f"a header may not begin with {RESERVED}: fields such as id, ttl_ms and priority set these")


def _bytes(what: str, text: str | UnsetType | None, coded: str | UnsetType, raw: Raw | UnsetType) -> bytes | None:
    if coded is UNSET and raw is UNSET:
        if text is None or text is UNSET:
            return None
        return text.encode()
    if (text is not UNSET) + (coded is not UNSET) + (raw is not UNSET) > 1:
        raise InvalidRecord(f"give one form of the {what} only")
    if coded is not UNSET:
        try:
            return a2b_base64(coded, strict_mode=True)
        except (NoBase64, ValueError) as error:
            raise InvalidRecord(f"the {what} is not base64: {error}") from None
    data = bytes(raw)  # type: ignore[arg-type]  # it is not UNSET
    try:
        data.decode()
    except UnicodeDecodeError:
        raise InvalidRecord(f"the {what} is JSON that is no UTF-8") from None
    return data


def record_of_bytes(body: bytes, headers: Mapping[str, str], now_us: int) -> Record:
    """Return the record that a body of bytes is, with key, tag and headers from those of the request."""
    key = headers.get("ledgermq-key")
    tag = headers.get("ledgermq-tag")
    pairs: list[tuple[str, bytes | None]] = []
    for name, value in headers.items():
        if name.startswith(HEADER_PREFIX):
            check_name(name[len(HEADER_PREFIX) :])
            pairs.append((name[len(HEADER_PREFIX) :], _unquoted(value)))
    try:
        text = None if tag is None else _unquoted(tag).decode()
    except UnicodeDecodeError:
        raise InvalidRecord("the tag in the header LedgerMQ-Tag is no UTF-8") from None
    return Record(body, None if key is None else _unquoted(key), pairs or None, text)


def _unquoted(value: str) -> bytes:
    """Return what a header that is percent-encoded stands for. Other bytes than ASCII stand for themselves."""
    return unquote_to_bytes(value.encode(errors="surrogateescape"))


def table_of_arrow(body: bytes, rows_max: int) -> pa.Table:
    """Return the rows of an Arrow stream, validated. Compressed buffers are refused: a small body could become any
    size. Raises InvalidRecord, Problem.
    """
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
            check_uncompressed(message.metadata)
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            _check_columns(stream.schema)
            table = stream.read_all()
        table.validate(full=True)
    except CorruptFrame as error:
        raise InvalidRecord(error.message) from None
    except (pa.ArrowException, OSError, ValueError, EOFError, StopIteration) as error:
        raise InvalidRecord(f"the body is no Arrow stream: {error}") from None
    if table.num_rows > rows_max:
        raise _too_many(table.num_rows, rows_max)
    _check_arrow_names(table)
    return table


def _check_columns(schema: pa.Schema) -> None:
    """Refuse types whose few bytes may stand for many, such as dictionaries and views, and names that are given twice
    or are no UTF-8 (ValueError).
    """
    if len(set(schema.names)) != len(schema.names):
        raise InvalidRecord(f"a column is given twice: {', '.join(sorted(schema.names))}")
    for field in schema:
        kinds = [field.type]
        while kinds:
            kind = kinds.pop()
            if not any(is_kind(kind) for is_kind in _PLAIN):
                raise InvalidRecord(
                    f"the column {field.name} has type {field.type}: send plain binary, text, lists or times"
                )
            inner = [kind.field(at) for at in range(kind.num_fields)]
            assert all(isinstance(each.name, str) for each in inner), "to read a name decodes it"
            kinds += [each.type for each in inner]


def _check_arrow_names(table: pa.Table) -> None:
    """Raise InvalidRecord for headers that only fields of a record may set, and for a column that has no headers."""
    if "headers" not in table.schema.names:
        return
    for chunk in table.column("headers").chunks:
        rows = column_of(chunk, "headers")
        for name in pc.unique(rows.flatten().field("key")).to_pylist():
            if name is not None:
                check_name(name)

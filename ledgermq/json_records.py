"""The JSON form of a record: what `ledgermq consume --format jsonl` prints and `ledgermq produce --format records`
takes, the same in both directions.

    {"topic": "t", "partition": 3, "offset": 7, "timestamp": "2026-11-28T12:10:46.589054Z",
     "key": "table-7", "value": "two coffees", "headers": [{"key": "from", "value": "web"}], "tag": "eu"}

Bytes are text where they are UTF-8; other bytes stand in base64 under `key_base64` or `value_base64`. A value of null
is a tombstone. A time outside of the years 1 to 9999 stands under `timestamp_us`, in microseconds since the epoch.

Lines are put together by hand. A record's value needs no more than quotation marks, which `bytes` finds faster
than any JSON library; `bench/json_records.py` compares them.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from typing import Any, NamedTuple, cast

from ledgermq.errors import InvalidRecord
from ledgermq.hints import did_you_mean

Headers = tuple[tuple[str, bytes | None], ...]

FIELDS = (
    "topic",
    "partition",
    "offset",
    "id",
    "timestamp",
    "timestamp_us",
    "key",
    "key_base64",
    "value",
    "value_base64",
    "headers",
    "tag",
)
_SHORT_BYTES = 64
"""Below that, the search for control characters costs more than it saves."""
_CONTROLS = bytes(range(32))
_SECOND_US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_MIN = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
_SECOND_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)


class JsonRecord(NamedTuple):
    """A record as its JSON form has it. `partition`: where it was; None: not given."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    tag: str | None = None
    timestamp_us: int | None = None
    partition: int | None = None


def json_line(message: tuple[Any, ...]) -> bytes:
    """Return the JSON form of a `ledgermq.Message` as a line, with its end."""
    topic, partition, offset, key, value, headers, timestamp_us, tag = message
    return (
        f'{{"topic":{_name(topic)},"partition":{partition},"offset":{offset},{_time(timestamp_us)},'
        f'{_bytes("key", key)},{_bytes("value", value)},"headers":{headers_text(headers)},"tag":{_name(tag)}}}\n'
    ).encode()


def fields_of(message: tuple[Any, ...]) -> dict[str, Any]:
    """Return the JSON form of a `ledgermq.Message`, for a larger document."""
    topic, partition, offset, key, value, headers, timestamp_us, tag = message
    fields: dict[str, Any] = {"topic": topic, "partition": partition, "offset": offset}
    text = None if timestamp_us is None else time_text(timestamp_us)
    fields |= {"timestamp": text} if text or timestamp_us is None else {"timestamp_us": timestamp_us}
    _add_bytes(fields, "key", key)
    _add_bytes(fields, "value", value)
    fields["headers"] = pairs = []
    for name, data in headers:
        pair = {"key": name}
        _add_bytes(pair, "value", data)
        pairs.append(pair)
    fields["tag"] = tag
    return fields


def _add_bytes(fields: dict[str, Any], name: str, data: bytes | None) -> None:
    try:
        fields[name] = None if data is None else data.decode()
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = b64encode(cast(bytes, data)).decode()


def headers_text(headers: Headers) -> str:
    """Return the JSON form of a record's headers alone."""
    if not headers:
        return "[]"
    return "[" + ",".join([f'{{"key":{_name(name)},{_bytes("value", data)}}}' for name, data in headers]) + "]"


def time_text(timestamp_us: int) -> str | None:
    """Return a time as JSON has it; None: it is outside of the years 1 to 9999."""
    seconds, us = divmod(timestamp_us, _SECOND_US)
    return f"{_second(seconds)}.{us:06d}Z" if _SECOND_MIN <= seconds <= _SECOND_MAX else None


def parse_record(line: bytes) -> JsonRecord:
    """Return the record that a JSON line is. Where it was (topic, offset, id) is ignored.

    Raises InvalidRecord, which names the field.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidRecord(f"expected a JSON object, got {line[:40].decode(errors='replace')!r}")
    _check_fields(fields, FIELDS)
    if "value" not in fields and "value_base64" not in fields:
        raise InvalidRecord("there is no field 'value' and no 'value_base64'; null is the value of a tombstone")
    headers = fields.get("headers")
    if headers is not None and not isinstance(headers, list):
        raise InvalidRecord(f"field 'headers' must be a list of objects with key and value, not {headers!r:.40}")
    partition = fields.get("partition")
    if partition is not None and (type(partition) is not int or partition < 0):
        raise InvalidRecord(f"field 'partition' must be a whole number, not {partition!r:.40}")
    return JsonRecord(
        _parse_bytes(fields, "value"),
        _parse_bytes(fields, "key"),
        tuple(map(_parse_header, headers or ())),
        _parse_text(fields, "tag"),
        _parse_time(fields),
        partition,
    )


def _name(name: str | None) -> str:
    """Return a text that is the same in many records."""
    if name is None:
        return "null"
    return _quoted_name(name) if len(name) < _SHORT_BYTES else quoted(name)


_quoted_name = lru_cache(1024)(quoted)


def _bytes(name: str, data: bytes | None) -> str:
    if data is None:
        return f'"{name}":null'
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f'"{name}_base64":"{b64encode(data).decode()}"'
    if len(data) < _SHORT_BYTES or len(data.translate(None, _CONTROLS)) < len(data):
        return f'"{name}":{quoted(text)}'
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{name}":"{text}"'


def _time(timestamp_us: int | None) -> str:
    if timestamp_us is None:
        return '"timestamp":null'
    text = time_text(timestamp_us)
    return f'"timestamp_us":{timestamp_us}' if text is None else f'"timestamp":"{text}"'


@lru_cache(1024)
def _second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


def _check_fields(fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in fields:
        if name not in known:
            raise InvalidRecord(f"a record has no field {name!r}; {did_you_mean(name, known)}")


def _parse_header(pair: Any) -> tuple[str, bytes | None]:
    if not isinstance(pair, dict) or not isinstance(pair.get("key"), str):
        raise InvalidRecord(f"a header must be an object with key and value, not {pair!r:.40}")
    _check_fields(pair, ("key", "value", "value_base64"))
    name = _parse_text(pair, "key")
    assert name is not None, "checked above"
    return name, _parse_bytes(pair, "value")


def _parse_bytes(fields: Mapping[str, Any], name: str) -> bytes | None:
    coded = fields.get(f"{name}_base64")
    if coded is None:
        text = _parse_text(fields, name)
        return None if text is None else text.encode()
    if fields.get(name) is not None:
        raise InvalidRecord(f"give either the field {name!r} or '{name}_base64'")
    try:
        return b64decode(coded, validate=True)
    except (ValueError, TypeError) as error:
        raise InvalidRecord(f"field '{name}_base64' is not base64: {error}") from None


def _parse_text(fields: Mapping[str, Any], name: str) -> str | None:
    text = fields.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidRecord(f"field {name!r} must be text, not {text!r:.40}; other JSON is written as text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"field {name!r} is not valid Unicode text: {error.reason}") from None
    return text


def _parse_time(fields: Mapping[str, Any]) -> int | None:
    if (us := fields.get("timestamp_us")) is not None:
        if type(us) is not int or fields.get("timestamp") is not None:
            raise InvalidRecord("field 'timestamp_us' must be a whole number, and stand alone without 'timestamp'")
        return us
    text = _parse_text(fields, "timestamp")
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRecord(f"field 'timestamp' is no time like 2026-11-28T12:10:46.589Z: {text!r:.60}") from None
    if moment.tzinfo is None:
        raise InvalidRecord(f"field 'timestamp' has no time zone: {text!r:.60}; end it with Z for UTC")
    return (moment - _EPOCH) // timedelta(microseconds=1)

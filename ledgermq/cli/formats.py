"""Formats in which `ledgermq consume` prints messages: one line each, written as they arrive.

value   the value's bytes and a newline (a tombstone is an empty line)
jsonl   topic, partition, offset, timestamp, key, value, headers, tag; bytes as text where they are
        UTF-8, else in …_base64
csv     the same columns with a header row; headers as JSON
table   aligned columns for a terminal, values cut to its width
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable
from datetime import UTC
from enum import StrEnum
from typing import Any

import ledgermq

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "tag")


class MessageFormat(StrEnum):
    VALUE = "value"
    JSONL = "jsonl"
    CSV = "csv"
    TABLE = "table"


Formatter = Callable[["ledgermq.Message"], bytes]


def formatter(form: MessageFormat, width: int) -> tuple[bytes, Formatter]:
    """The header line of an output, and the function that formats a message as a line.

    `width`: width of the terminal in characters; 0: cut nothing.
    """
    if form is MessageFormat.VALUE:
        return b"", lambda message: (message.value or b"") + b"\n"
    if form is MessageFormat.JSONL:
        return b"", _jsonl
    if form is MessageFormat.CSV:
        return _csv_line(COLUMNS), _csv
    return _table_line("PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE", width), lambda message: _table(
        message, width
    )


def fields_of(message: ledgermq.Message) -> dict[str, Any]:
    """Return the fields of a message as JSON has them."""
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": _timestamp(message),
        **_bytes_field("key", message.key),
        **_bytes_field("value", message.value),
        "headers": _headers(message),
        "tag": message.tag,
    }


def _jsonl(message: ledgermq.Message) -> bytes:
    return json.dumps(fields_of(message), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _csv(message: ledgermq.Message) -> bytes:
    headers = _headers(message)
    return _csv_line(
        (
            message.topic,
            message.partition,
            message.offset,
            _timestamp(message) or "",
            _readable(message.key),
            _readable(message.value),
            json.dumps(headers, ensure_ascii=False) if headers else "",
            message.tag or "",
        )
    )


def _csv_line(fields: tuple[Any, ...]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue().encode()


def _table(message: ledgermq.Message, width: int) -> bytes:
    value = "–" if message.value is None else _readable(message.value)
    return _table_line(
        message.partition, message.offset, _timestamp(message) or "–", _readable(message.key), value, width
    )


def _table_line(partition: object, offset: object, timestamp: object, key: str, value: str, width: int) -> bytes:
    line = f"{partition!s:>9}  {offset!s:>10}  {timestamp!s:<27}  {_one_line(key):<12}  {_one_line(value)}"
    return (line[:width] if width else line).rstrip().encode() + b"\n"


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "·" for c in text)


def _timestamp(message: ledgermq.Message) -> str | None:
    if message.timestamp is None:
        return None
    return message.timestamp.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _headers(message: ledgermq.Message) -> list[dict[str, Any]]:
    return [{"key": key, **_bytes_field("value", value)} for key, value in message.headers or ()]


def _bytes_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return the bytes as text under `name`, or under `<name>_base64` if they are not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _readable(data: bytes | None) -> str:
    return "" if data is None else data.decode(errors="backslashreplace")

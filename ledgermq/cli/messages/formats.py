"""Formats in which `ledgermq consume` prints messages: one line each, written as they arrive.

value     the value's bytes and a newline (a tombstone is an empty line)
jsonl     topic, partition, offset, timestamp, key, value, headers, tag (`ledgermq.json_records`)
csv       the same columns with a header row; headers as JSON
table     aligned columns for a terminal, values cut to its width
TEMPLATE  any text with % in it: %k key, %s value, %t topic, %p partition, %o offset, %T timestamp, %h headers, %g tag,
          %K and %S bytes of key and value, %% a percent sign; \n, \t, \0 and \\

A pipe or a file gets bytes as they are. On a terminal, characters that could move its cursor or set its title are
escaped, a newline inside a value too.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import ledgermq
from ledgermq import json_records
from ledgermq.cli.output.escapes import escaped, unescaped
from ledgermq.errors import InvalidRequest

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "tag")


class MessageFormat(StrEnum):
    VALUE = "value"
    JSONL = "jsonl"
    CSV = "csv"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Template:
    """A text in which each %-letter stands for a part of the message."""

    text: str


FORMATS = (*MessageFormat, "json")
Formatter = Callable[["ledgermq.Message"], bytes]
Part = Callable[["ledgermq.Message"], bytes]


def parse_format(text: str) -> MessageFormat | Template:
    """Return the format of this name, or a template. Raises InvalidRequest."""
    if text in FORMATS:
        return MessageFormat.JSONL if text == "json" else MessageFormat(text)
    if "%" not in text:
        raise InvalidRequest(
            f"--format {text!r}: give value, jsonl, csv or table, or a template such as '%k %s' (%k key, %s value)"
        )
    for letter in re.findall("%(.?)", text, re.DOTALL):
        if letter not in PARTS and letter != "%":
            known = ", ".join(f"%{each}" for each in PARTS)
            raise InvalidRequest(f"--format {text!r}: %{letter} is not known; there are {known} and %%")
    return Template(text)


def formatter(form: MessageFormat | Template, width: int, *, terminal: bool = False) -> tuple[bytes, Formatter]:
    """The header line of an output, and the function that formats a message as a line.

    `width`: width of the terminal in characters; 0: cut nothing. `terminal`: escape what controls one.
    """
    if isinstance(form, Template):
        return b"", _filled(form.text, terminal)
    if form is MessageFormat.VALUE:
        if terminal:
            return b"", lambda message: _readable(message.value, terminal).encode() + b"\n"
        return b"", lambda message: (message.value or b"") + b"\n"
    if form is MessageFormat.JSONL:
        return b"", _json_on_terminal if terminal else json_records.json_line
    if form is MessageFormat.CSV:
        return _csv_line(COLUMNS), lambda message: _csv(message, terminal)
    return _table_line("PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE", width), lambda message: _table(
        message, width
    )


def _json_on_terminal(message: ledgermq.Message) -> bytes:
    """JSON leaves characters beyond ASCII as they are; some of them control a terminal, too."""
    line = json_records.json_line(message)
    return line if line.isascii() else escaped(line[:-1].decode(), json=True).encode() + b"\n"


PARTS: dict[str, Part] = {
    "k": lambda message: message.key or b"",
    "s": lambda message: message.value or b"",
    "v": lambda message: message.value or b"",
    "t": lambda message: message.topic.encode(),
    "p": lambda message: b"%d" % message.partition,
    "o": lambda message: b"%d" % message.offset,
    "T": lambda message: (_timestamp(message) or "").encode(),
    "h": lambda message: json_records.headers_text(message.headers).encode(),
    "g": lambda message: (message.tag or "").encode(),
    "K": lambda message: b"%d" % (-1 if message.key is None else len(message.key)),
    "S": lambda message: b"%d" % (-1 if message.value is None else len(message.value)),
}
"""By the letter behind a percent sign, those of kcat where it has them. -1: bytes of what is null."""


def _filled(text: str, terminal: bool) -> Formatter:
    """Return a function that fills a template. It ends its line, if the template does not."""
    pieces: list[bytes | Part] = []
    for piece in re.split("(%.)", text, flags=re.DOTALL):
        if piece.startswith("%") and len(piece) > 1:
            pieces.append(b"%" if piece == "%%" else PARTS[piece[1]])
        else:
            pieces.append(unescaped(piece))
    last = pieces[-1]
    if not (isinstance(last, bytes) and last.endswith((b"\n", b"\0"))):
        pieces.append(b"\n")

    def fill(message: ledgermq.Message) -> bytes:
        found = (
            piece
            if isinstance(piece, bytes)
            else _readable(piece(message), terminal).encode()
            if terminal
            else piece(message)
            for piece in pieces
        )
        return b"".join(found)

    return fill


def _csv(message: ledgermq.Message, terminal: bool) -> bytes:
    return _csv_line(
        (
            message.topic,
            message.partition,
            message.offset,
            _timestamp(message) or "",
            _readable(message.key, terminal),
            _readable(message.value, terminal),
            _readable(json_records.headers_text(message.headers).encode() if message.headers else None, terminal),
            _readable(message.tag.encode() if message.tag else None, terminal),
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
    if message.timestamp_us is None:
        return None
    return json_records.time_text(message.timestamp_us) or f"{message.timestamp_us} µs"


def _readable(data: bytes | None, terminal: bool = False) -> str:
    text = "" if data is None else data.decode(errors="backslashreplace")
    return escaped(text) if terminal else text

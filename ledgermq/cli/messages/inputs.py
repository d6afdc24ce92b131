"""Turn the input of `ledgermq produce` (lines, JSON lines, CSV or whole records) into records.

    lines    value = the line; with a key separator: key, separator, value
    jsonl    value = the whole line, or one field of it; key = one field
    csv      the first row names the columns; value = the row as a JSON object, or one column of it; key = one column
    records  what `ledgermq consume --format jsonl` prints: key, value, headers, tag, time (`ledgermq.json_records`)

JSON and CSV may begin with a byte order mark. A line that is not a valid record raises InvalidRecord, which names the
input and the line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ledgermq.cli.messages.lines import LineSource
from ledgermq.cli.output.escapes import unescaped
from ledgermq.errors import InvalidRecord, InvalidRequest
from ledgermq.hints import did_you_mean
from ledgermq.json_records import Headers, parse_record


class InputFormat(StrEnum):
    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"
    RECORDS = "records"


FORMATS = (*InputFormat, "json")
_BOM = b"\xef\xbb\xbf"


def parse_input_format(text: str) -> InputFormat:
    """Raises InvalidRequest."""
    if text not in FORMATS:
        raise InvalidRequest(f"--format {text!r}: give {', '.join(InputFormat)}; {did_you_mean(text, FORMATS)}")
    return InputFormat.JSONL if text == "json" else InputFormat(text)


@dataclass(frozen=True, slots=True)
class InputRecord:
    value: bytes | None
    key: bytes | None
    id: bytes | None = None
    headers: Headers = ()
    tag: str | None = None
    timestamp_us: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """Position of key, value and id in a line.

    `key`, `value`, `id`: a JSON field or CSV column. `key_separator`: for lines.
    """

    key: str | None = None
    value: str | None = None
    key_separator: str | None = None
    id: str | None = None

    def check(self, form: InputFormat) -> None:
        """Raises InvalidRequest for an option that the format does not support."""
        if form is InputFormat.LINES and (self.key or self.value):
            raise InvalidRequest(
                "--key and --value name fields of jsonl or columns of csv; for lines use --key-separator"
            )
        if form is InputFormat.RECORDS and (self.key or self.value or self.id):
            raise InvalidRequest(
                "records have their own key and value: leave out --key, --value and --id, or use --format jsonl"
            )
        if form is InputFormat.LINES and self.id:
            raise InvalidRequest("--id names a field of jsonl or a column of csv; lines have no ids")
        if form is not InputFormat.LINES and self.key_separator:
            raise InvalidRequest("--key-separator is for lines; for jsonl and csv use --key")
        if self.key_separator == "":
            raise InvalidRequest("--key-separator must not be empty")


def read_records(source: LineSource, form: InputFormat, shape: Shape, skip: int = 0) -> Iterator[InputRecord]:
    """Yield the records of an input.

    `skip`: number of lines to skip. The first row of CSV counts as one of them, and still names the
    columns.

    Raises InvalidRecord, OSError; InvalidRequest if the input has fewer lines than `skip`, and
    before the first record for a shape that the format does not support.
    """
    shape.check(form)
    readers = {
        InputFormat.LINES: _from_lines,
        InputFormat.JSONL: _from_jsonl,
        InputFormat.CSV: _from_csv,
        InputFormat.RECORDS: _from_json_records,
    }
    return readers[form](source, shape, skip)


def _skip_to(source: LineSource, line: int) -> None:
    while source.line_number < line:
        if next(source, None) is None:
            raise InvalidRequest(f"--skip {line}: {source.name} has only {source.line_number} lines")


def _from_lines(source: LineSource, shape: Shape, skip: int) -> Iterator[InputRecord]:
    _skip_to(source, skip)
    separator = unescaped(shape.key_separator) if shape.key_separator else None
    for line in source:
        text = line.rstrip(b"\r\n")
        if separator is None:
            yield InputRecord(text, None)
            continue
        key, found, value = text.partition(separator)
        if not found:
            raise InvalidRecord(f"{source.where()}: there is no {shape.key_separator!r} between key and value")
        yield InputRecord(value, key)


def _from_jsonl(source: LineSource, shape: Shape, skip: int) -> Iterator[InputRecord]:
    _skip_to(source, skip)
    for text in _texts(source):
        if not (shape.key or shape.value or shape.id):
            _parse(text, source)
            yield InputRecord(text, None)
            continue
        row = _parse(text, source)
        if not isinstance(row, dict):
            raise InvalidRecord(f"{source.where()}: expected a JSON object, got {text[:40].decode(errors='replace')!r}")
        key = _field(row, shape.key, source) if shape.key else None
        value = _field(row, shape.value, source) if shape.value else text
        yield InputRecord(value, key, _field(row, shape.id, source) if shape.id else None)


def _texts(source: LineSource) -> Iterator[bytes]:
    """Yield the lines that are not empty, without the byte order mark that some programs put before the first.

    Files that were joined have one inside, too. No JSON begins with it.
    """
    for line in source:
        if text := line.removeprefix(_BOM).strip():
            yield text


def _from_json_records(source: LineSource, shape: Shape, skip: int) -> Iterator[InputRecord]:
    _skip_to(source, skip)
    for text in _texts(source):
        try:
            found = parse_record(text)
        except InvalidRecord as error:
            raise InvalidRecord(f"{source.where()}: {error.message}") from None
        yield InputRecord(found.value, found.key, None, found.headers, found.tag, found.timestamp_us, found.partition)


def _parse(text: bytes, source: LineSource) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"{source.where()}: not JSON: {error}") from error


def _field(row: dict[str, Any], name: str, source: LineSource) -> bytes | None:
    if name not in row:
        raise InvalidRecord(f"{source.where()}: there is no field {name!r}; {did_you_mean(name, row)}")
    value = row[name]
    if value is None:
        return None
    try:
        return (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        ).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise InvalidRecord(f"{source.where()}: field {name!r} is not text: {error}") from error


def _from_csv(source: LineSource, shape: Shape, skip: int) -> Iterator[InputRecord]:
    rows = csv.reader(_decoded(source), strict=True)
    columns = _next_row(rows, source)
    if columns is None:
        return
    for wanted in (shape.key, shape.value, shape.id):
        if wanted and wanted not in columns:
            raise InvalidRequest(f"{source.name}: there is no column {wanted!r}; {did_you_mean(wanted, columns)}")
    _skip_to(source, skip)
    while (row := _next_row(rows, source)) is not None:
        if not row:
            continue
        if len(row) != len(columns):
            raise InvalidRecord(f"{source.where()}: {len(row)} fields, but the first row names {len(columns)} columns")
        named = dict(zip(columns, row, strict=True))
        value = named[shape.value] if shape.value else json.dumps(named, ensure_ascii=False, separators=(",", ":"))
        key, message_id = (named[field].encode() if field else None for field in (shape.key, shape.id))
        yield InputRecord(value.encode(), key, message_id)


def _next_row(rows: Iterator[list[str]], source: LineSource) -> list[str] | None:
    try:
        return next(rows, None)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidRecord(f"{source.where()}: not CSV: {error}") from error


def _decoded(source: LineSource) -> Iterator[str]:
    for line in source:
        yield line.decode("utf-8-sig" if source.line_number == 1 else "utf-8")

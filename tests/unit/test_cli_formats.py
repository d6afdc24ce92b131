"""How a message looks in each output format."""

from __future__ import annotations

import csv
import io
import json

import pytest

import ledgermq
from ledgermq.cli.formats import MessageFormat, formatter

PLAIN = ledgermq.Message("t", 3, 7, b"k", b'{"a": 1}', (), 1_700_000_000_123_456, None)
ODD = ledgermq.Message("t", 0, 8, None, b'\xff\n,"', (("h", b"1"), ("h", None)), None, "red")
TOMBSTONE = ledgermq.Message("t", 0, 9, b"k", None, (), 0, None)


def shown(form: MessageFormat, *messages: ledgermq.Message, width: int = 0) -> bytes:
    above, line = formatter(form, width)
    return above + b"".join(map(line, messages))


def test_values() -> None:
    assert shown(MessageFormat.VALUE, PLAIN, TOMBSTONE) == b'{"a": 1}\n\n'


def test_json_lines() -> None:
    plain, odd, tombstone = (
        json.loads(line) for line in shown(MessageFormat.JSONL, PLAIN, ODD, TOMBSTONE).splitlines()
    )
    assert plain == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": "2023-11-14T22:13:20.123456Z",
        "key": "k",
        "value": '{"a": 1}',
        "headers": [],
        "tag": None,
    }
    assert (odd["value_base64"], odd["key"], odd["timestamp"], odd["tag"]) == ("/wosIg==", None, None, "red")
    assert odd["headers"] == [{"key": "h", "value": "1"}, {"key": "h", "value": None}]
    assert "value" in tombstone
    assert tombstone["value"] is None


def test_csv_has_one_header_and_quotes_what_needs_it() -> None:
    rows = list(csv.reader(io.StringIO(shown(MessageFormat.CSV, PLAIN, ODD).decode())))
    assert rows[0] == ["topic", "partition", "offset", "timestamp", "key", "value", "headers", "tag"]
    assert rows[1] == ["t", "3", "7", "2023-11-14T22:13:20.123456Z", "k", '{"a": 1}', "", ""]
    assert rows[2][4:6] == ["", '\\xff\n,"']


@pytest.mark.parametrize("width", [0, 80])
def test_a_table_has_one_line_a_message(width: int) -> None:
    long = PLAIN._replace(value=b"x" * 500)
    lines = shown(MessageFormat.TABLE, PLAIN, ODD, long, width=width).decode().splitlines()
    assert len(lines) == 4
    assert lines[1].split() == ["3", "7", "2023-11-14T22:13:20.123456Z", "k", '{"a":', "1}"]
    assert (len(lines[3]) == 80) == bool(width)

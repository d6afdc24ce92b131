"""How a message looks in each output format."""

from __future__ import annotations

import csv
import io
import json

import pytest

import ledgermq
from ledgermq.cli.arguments.options import OutputFormat
from ledgermq.cli.messages.consume import chosen_format
from ledgermq.cli.messages.formats import MessageFormat, Template, formatter, parse_format
from ledgermq.errors import InvalidRequest
from ledgermq.json_records import fields_of

PLAIN = ledgermq.Message("t", 3, 7, b"k", b'{"a": 1}', (), 1_700_000_000_123_456, None)
ODD = ledgermq.Message("t", 0, 8, None, b'\xff\n,"', (("h", b"1"), ("h", None)), None, "red")
TOMBSTONE = ledgermq.Message("t", 0, 9, b"k", None, (), 0, None)


def shown(form: MessageFormat | Template, *messages: ledgermq.Message, width: int = 0) -> bytes:
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


EVIL = b"\x1b]0;pwned\x07two\nlines \xc2\x9b\xe2\x80\xae"
EVIL_MESSAGE = ledgermq.Message("t", 0, 9, EVIL, EVIL, (("\x1b[2J", EVIL),), 0, "\x1b[31m")


@pytest.mark.parametrize("form", [*MessageFormat, Template("%k|%s|%h|%g")])
def test_a_terminal_gets_nothing_that_controls_it(form: MessageFormat | Template) -> None:
    _, line = formatter(form, 0, terminal=True)
    text = line(EVIL_MESSAGE).decode()
    assert text.endswith("\n")
    assert text[:-1].isprintable(), "one line, without control characters"
    if form is MessageFormat.JSONL:
        assert json.loads(text) == fields_of(EVIL_MESSAGE), "it is still the same JSON"
    if form is MessageFormat.VALUE:
        assert text == "\\x1b]0;pwned\\x07two\\nlines \\x9b\\u202e\n"


@pytest.mark.parametrize("value", [EVIL, b"\xff\x00", b""])
def test_a_pipe_gets_the_bytes(value: bytes) -> None:
    assert shown(MessageFormat.VALUE, PLAIN._replace(value=value)) == value + b"\n"
    assert shown(Template("%s"), PLAIN._replace(value=value)) == value + b"\n"


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("%k %s", b'k {"a": 1}\n'),
        (r"%t[%p]@%o\t%T\n", b"t[3]@7\t2023-11-14T22:13:20.123456Z\n"),
        (r"%s\0", b'{"a": 1}\0'),
        ("%K/%S %g%%", b"1/8 %\n"),
        ("100 %% %h", b"100 % []\n"),
        (r"\\n%v\x41", b'\\n{"a": 1}A\n'),
    ],
)
def test_a_template_is_filled(template: str, line: bytes) -> None:
    assert shown(parse_format(template), PLAIN) == line


def test_a_template_says_what_is_null() -> None:
    assert shown(Template("%K %S"), TOMBSTONE._replace(key=None)) == b"-1 -1\n"


@pytest.mark.parametrize(
    ("text", "says"), [("xml", "value, jsonl, csv or table"), ("%y", "%y is not known"), ("5 %", "")]
)
def test_another_format_is_refused_in_our_own_words(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=f"--format '{text}'.*{says}"):
        parse_format(text)


def test_json_is_jsonl() -> None:
    assert parse_format("json") is parse_format("jsonl") is MessageFormat.JSONL
    assert chosen_format("", OutputFormat.JSON, MessageFormat.VALUE) is MessageFormat.JSONL
    assert chosen_format("", OutputFormat.TABLE, MessageFormat.VALUE) is MessageFormat.TABLE
    with pytest.raises(InvalidRequest, match="either --format or --output"):
        chosen_format("csv", OutputFormat.JSON, MessageFormat.VALUE)

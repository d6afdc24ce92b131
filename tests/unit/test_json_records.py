"""The JSON form of a record is the one that `json.dumps` makes, byte for byte, and is read back whole."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ledgermq
from ledgermq.errors import InvalidRecord
from ledgermq.json_records import JsonRecord, fields_of, headers_text, json_line, parse_record

YEARS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)


def by_the_library(message: ledgermq.Message) -> bytes:
    """What `ledgermq consume --format jsonl` printed when it used the library for everything."""

    def field(name: str, data: bytes | None) -> dict[str, Any]:
        if data is None:
            return {name: None}
        try:
            return {name: data.decode()}
        except UnicodeDecodeError:
            return {f"{name}_base64": base64.b64encode(data).decode()}

    time = None if message.timestamp is None else message.timestamp.isoformat(timespec="microseconds")
    fields = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": time and time.replace("+00:00", "Z"),
        **field("key", message.key),
        **field("value", message.value),
        "headers": [{"key": name, **field("value", data)} for name, data in message.headers],
        "tag": message.tag,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


texts = st.text(st.characters(exclude_categories=["Cs"]))
data = st.none() | st.binary() | texts.map(str.encode) | texts.map(lambda text: json.dumps({text: text}).encode() * 9)
messages = st.builds(
    ledgermq.Message,
    texts,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    data,
    data,
    st.lists(st.tuples(texts, data), max_size=4).map(tuple),
    st.none() | st.integers(*YEARS_US),
    st.none() | texts,
)
HOSTILE = [
    b"",
    b"\x00\x01\x1f\x7f\x80\xff",
    b'"\\\\"\n\r\t\b\f/',
    b"NaN",
    b"-Infinity",
    b'{"a":NaN,"a":1e999,"b":12345678901234567890123}',
    b"\xed\xa0\x80",  # a surrogate, which is no UTF-8
    b"\xef\xbb\xbf{}",
    b"\xc0\xaf",
    b"\xf4\x90\x80\x80",  # beyond Unicode
    "\u2028\u2029\ufeff\U0010ffff\x85\x9b".encode(),
    b'plain "quoted" text of more than sixty-four bytes, with \\ in it: ' * 40,
    "lange Zeile mit \u00fc und \U0001f600, und \n dazu ".encode() * 40,
    b"\x1b]0;title\x07" * 20,
]


@given(messages)
@example(ledgermq.Message("t", 0, 0, None, None, (), YEARS_US[0], None))
@example(ledgermq.Message("t", 0, 0, None, None, (("", None), ("ledgermq.x", b"\xff")), YEARS_US[1], ""))
@example(ledgermq.Message("t", 0, 0, None, None, (), -1, "NaN"))
def test_a_line_is_what_the_library_makes(message: ledgermq.Message) -> None:
    line = json_line(message)
    assert line == by_the_library(message)
    assert line.count(b"\n") == 1
    assert fields_of(message) == json.loads(line)
    assert json.loads(headers_text(message.headers)) == fields_of(message)["headers"]
    assert parse_record(line) == JsonRecord(
        message.value, message.key, message.headers, message.tag, message.timestamp_us, message.partition
    )


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_come_back(value: bytes) -> None:
    message = ledgermq.Message("t", 0, 1, value, value, (("h", value), ("h", value), ("i", None)), 0, "t")
    assert json_line(message) == by_the_library(message)
    assert parse_record(json_line(message)) == JsonRecord(value, value, message.headers, "t", 0, 0)


@pytest.mark.parametrize("timestamp_us", [YEARS_US[0] - 1, YEARS_US[1] + 1, -(2**63), 2**63 - 1])
def test_a_time_outside_of_the_calendar_is_a_number(timestamp_us: int) -> None:
    line = json_line(ledgermq.Message("t", 0, 1, None, b"v", (), timestamp_us, None))
    assert json.loads(line)["timestamp_us"] == timestamp_us
    assert parse_record(line).timestamp_us == timestamp_us


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "expected a JSON object"),
        (b"{}", "no field 'value'"),
        (b'{"value":1}', "field 'value' must be text"),
        (b'{"value":"a","value_base64":"YQ=="}', "give either"),
        (b'{"value_base64":"?"}', "not base64"),
        (b'{"value_base64":1}', "not base64"),
        (b'{"value":"\\ud800"}', "not valid Unicode"),
        (b'{"value":"a","valeu":"b"}', "did you mean 'value'"),
        (b'{"value":"a","headers":{"a":"b"}}', "must be a list"),
        (b'{"value":"a","headers":[{"value":"b"}]}', "a header must be"),
        (b'{"value":"a","headers":[{"key":"b","x":1}]}', "no field 'x'"),
        (b'{"value":"a","timestamp":"yesterday"}', "no time"),
        (b'{"value":"a","timestamp":"2026-11-28T12:10:46"}', "no time zone"),
        (b'{"value":"a","timestamp":1764330000}', "must be text"),
        (b'{"value":"a","timestamp_us":"1"}', "whole number"),
        (b'{"value":"a","partition":-1}', "whole number"),
        (b'{"value":"a","partition":true}', "whole number"),
        (b'{"value":"a","tag":5}', "field 'tag' must be text"),
    ],
)
def test_what_is_no_record_is_refused_with_its_field(line: bytes, message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        parse_record(line)


def test_times_of_other_zones_are_read_to_the_microsecond() -> None:
    found = parse_record(b'{"value":null,"timestamp":"2026-11-28T14:10:46.589054+02:00"}')
    moment = datetime(2026, 11, 28, 12, 10, 46, 589054, UTC)
    assert found.timestamp_us == (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

"""`ledgermq message`: keys from options, options that go on with a search, and bytes for people."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ledgermq.cli.arguments.start import parse_start
from ledgermq.cli.messages.message import HEX_BYTES_MAX, found_row, parse_key, rest_options, shown
from ledgermq.client.consuming.message import Message
from ledgermq.errors import InvalidRequest


def test_a_key_is_text_or_hexadecimal() -> None:
    assert parse_key("käse", None) == "käse".encode()
    assert parse_key(None, "ff 01") == b"\xff\x01"
    assert parse_key("", None) == b""
    for key, key_hex in ((None, None), ("k", "00"), (None, "xyz"), (None, "0")):
        with pytest.raises(InvalidRequest):
            parse_key(key, key_hex)


def test_the_rest_of_a_search_is_read_back() -> None:
    rest = {"partitions": [1, 4], "start": {1: 0, 4: 7}, "end": {1: 5, 4: 9}}
    words = rest_options(rest).split()
    assert [word for word in words if word.isdigit()] == ["1", "4"]
    now = datetime.now(UTC)
    assert parse_start(words[words.index("--start") + 1], now) == rest["start"]
    assert parse_start(words[words.index("--end") + 1], now) == rest["end"]


def test_bytes_are_shown_as_text_if_they_are() -> None:
    assert shown(None, hexadecimal=False) is None
    assert shown("ü".encode(), hexadecimal=False) == "ü"
    assert shown("ü".encode(), hexadecimal=True) == "c3 bc"
    assert shown(b"\xff\x00", hexadecimal=False) == "ff 00"
    long = shown(b"\xff" * (HEX_BYTES_MAX + 1), hexadecimal=False)
    assert long is not None
    assert long.endswith(f" … ({HEX_BYTES_MAX + 1} bytes)")


def test_a_row_for_people_cuts_the_value() -> None:
    row = found_row(Message("t", 0, 3, None, b"x" * 500, (), None, None))
    assert (row["id"], row["bytes"], row["timestamp"], row["key"]) == ("t:0:3", 500, None, None)
    assert row["value"].endswith("x…")
    assert found_row(Message("t", 0, 3, b"k", None, (), None, None))["value"] is None

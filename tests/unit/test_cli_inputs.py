"""What `ledgermq produce` makes of its input, and what it says about bad input."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ledgermq
from ledgermq.cli.messages import lines
from ledgermq.cli.messages.delayed import Delay
from ledgermq.cli.messages.inputs import InputFormat, InputRecord, Shape, read_records
from ledgermq.cli.messages.lines import LineSource, in_pieces, open_lines
from ledgermq.cli.messages.produce import Common, parse_headers
from ledgermq.errors import InvalidRecord, InvalidRequest
from ledgermq.json_records import json_line


def source(data: bytes) -> LineSource:
    return LineSource(io.BytesIO(data), "flights", len(data))


def records(data: bytes, form: InputFormat, shape: Shape | None = None, skip: int = 0) -> list[InputRecord]:
    return list(read_records(source(data), form, shape or Shape(), skip))


def test_the_value_of_a_header_may_be_any_bytes_that_a_shell_passes_on() -> None:
    assert list(parse_headers([os.fsdecode(b"k=\xff\xfe=")])) == [("k", b"\xff\xfe=")]


def test_a_line_is_a_value_without_its_end() -> None:
    assert records(b"one\ntwo\r\n\nlast", InputFormat.LINES) == [
        InputRecord(v, None) for v in (b"one", b"two", b"", b"last")
    ]


def test_lines_with_a_key() -> None:
    assert records(b"a:1:x\n:2\n", InputFormat.LINES, Shape(key_separator=":")) == [
        InputRecord(b"1:x", b"a"),
        InputRecord(b"2", b""),
    ]


def test_a_line_without_the_separator_is_named() -> None:
    with pytest.raises(InvalidRecord, match=r"flights, line 2: there is no ':'"):
        records(b"a:1\nb\n", InputFormat.LINES, Shape(key_separator=":"))


def test_a_json_line_stays_as_it_is_and_its_field_is_the_key() -> None:
    data = b'{"carrier": "UA",  "delay": 2}\n\n{"carrier": 7, "delay": null}\n'
    assert records(data, InputFormat.JSONL, Shape(key="carrier")) == [
        InputRecord(b'{"carrier": "UA",  "delay": 2}', b"UA"),
        InputRecord(b'{"carrier": 7, "delay": null}', b"7"),
    ]


def test_a_json_field_as_value_and_null_as_tombstone() -> None:
    data = b'{"k": "a", "v": {"x": 1}}\n{"k": "a", "v": null}\n'
    assert records(data, InputFormat.JSONL, Shape(key="k", value="v")) == [
        InputRecord(b'{"x":1}', b"a"),
        InputRecord(None, b"a"),
    ]


@pytest.mark.parametrize(
    ("data", "shape", "problem"),
    [
        (b'{"a": 1}\n{"a": \n', Shape(), "flights, line 2: not JSON"),
        (b"[1, 2]\n", Shape(key="a"), "flights, line 1: expected a JSON object"),
        (b'{"carier": 1}\n', Shape(key="carrier"), "there is no field 'carrier'; did you mean 'carier'?"),
        (b'{"x": 1, "y": 2}\n', Shape(value="carrier"), "there is no field 'carrier'; known: x, y"),
        (b"\xff\xfe\n", Shape(), "line 1: not JSON"),
    ],
)
def test_bad_json_lines(data: bytes, shape: Shape, problem: str) -> None:
    with pytest.raises(InvalidRecord) as raised:
        records(data, InputFormat.JSONL, shape)
    assert problem in raised.value.message


def test_a_csv_row_becomes_a_json_object() -> None:
    data = b'\xef\xbb\xbfcarrier,note\nUA,"two\nlines, and ""quotes"""\n\nAA,\n'
    found = records(data, InputFormat.CSV, Shape(key="carrier"))
    assert [record.key for record in found] == [b"UA", b"AA"]
    assert [json.loads(record.value or b"") for record in found] == [
        {"carrier": "UA", "note": 'two\nlines, and "quotes"'},
        {"carrier": "AA", "note": ""},
    ]


def test_a_csv_column_as_value() -> None:
    assert records(b"k,v\na,1\n", InputFormat.CSV, Shape(key="k", value="v")) == [InputRecord(b"1", b"a")]


def test_an_empty_csv_has_no_records() -> None:
    assert records(b"", InputFormat.CSV) == []


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"a,b\n1\n", "line 2: 1 fields, but the first row names 2 columns"),
        (b'a\n"x\n', "not CSV"),
        (b"a\n\xff\n", "not CSV"),
    ],
)
def test_bad_csv(data: bytes, problem: str) -> None:
    with pytest.raises(InvalidRecord) as raised:
        records(data, InputFormat.CSV)
    assert problem in raised.value.message


def test_a_column_that_is_not_there_is_refused_before_any_row() -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'carrier'"):
        records(b"carrier\nUA\n", InputFormat.CSV, Shape(key="carier"))


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        (InputFormat.LINES, Shape(key="a")),
        (InputFormat.CSV, Shape(key_separator=":")),
        (InputFormat.LINES, Shape(key_separator="")),
    ],
)
def test_a_shape_that_the_format_does_not_know(form: InputFormat, shape: Shape) -> None:
    with pytest.raises(InvalidRequest):
        records(b"", form, shape)


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b""))), st.integers(1, 64))
def test_lines_come_whole_from_reads_of_any_size(parts: list[bytes], piece: int) -> None:
    data = b"".join(part + b"\n" for part in parts)

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(piece)

    found = list(LineSource(Slow(data), "slow", None))
    assert found == [part + b"\n" for part in parts]


def test_a_line_over_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1000)
    with pytest.raises(InvalidRecord, match="flights, line 1: longer than 1000 bytes"):
        list(source(b"x" * 2000 * 1000))
    found = source(b"a\nb\n" + b"x" * 2000 * 1000)
    rest: list[bytes] = []
    with pytest.raises(InvalidRecord, match="flights, line 3: longer"):
        rest.extend(found)
    assert rest == [b"a\n", b"b\n"]


@pytest.mark.parametrize(
    ("form", "data", "skip", "values"),
    [
        (InputFormat.LINES, b"1\n2\n3\n", 0, [b"1", b"2", b"3"]),
        (InputFormat.LINES, b"1\n2\n3\n", 2, [b"3"]),
        (InputFormat.LINES, b"1\n2\n3\n", 3, []),
        (InputFormat.JSONL, b"1\n\n2\n", 1, [b"2"]),
        (InputFormat.CSV, b"a\n1\n2\n", 0, [b"1", b"2"]),
        (InputFormat.CSV, b"a\n1\n2\n", 1, [b"1", b"2"]),
        (InputFormat.CSV, b"a\n1\n2\n", 2, [b"2"]),
        (InputFormat.CSV, b'a\n"1\n1"\n2\n', 3, [b"2"]),
    ],
)
def test_lines_that_were_sent_before_are_skipped(
    form: InputFormat, data: bytes, skip: int, values: list[bytes]
) -> None:
    shape = Shape(value="a") if form is InputFormat.CSV else Shape()
    assert [each.value for each in records(data, form, shape, skip)] == values


@pytest.mark.parametrize("form", [InputFormat.LINES, InputFormat.JSONL, InputFormat.CSV])
def test_more_lines_than_there_are_cannot_be_skipped(form: InputFormat) -> None:
    with pytest.raises(InvalidRequest, match="--skip 4: flights has only 3 lines"):
        records(b"1\n2\n3\n", form, skip=4)


async def test_a_slow_pipe_gives_what_is_there() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as stream, os.fdopen(writer, "wb", buffering=0) as pipe:
        lines_of_pipe = LineSource(stream, "pipe", None)
        pieces = in_pieces(lines_of_pipe, iter(lines_of_pipe), 100)
        pipe.write(b"a\nb\nhalf")
        assert await anext(pieces) == [b"a\n", b"b\n"]
        pipe.write(b" done\n")
        assert await anext(pieces) == [b"half done\n"]


async def test_a_blocked_read_does_not_hold_up_cancelling() -> None:
    reader, writer = os.pipe()
    stream = os.fdopen(reader, "rb", buffering=0)
    blocked = LineSource(stream, "pipe", None)
    pieces = in_pieces(blocked, iter(blocked), 100)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await anext(pieces)
    os.close(writer)  # lets the thread end
    for thread in threading.enumerate():
        if thread.name == "ledgermq-input":
            thread.join(10)
    stream.close()


async def test_a_file_comes_in_large_pieces(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % n for n in range(2500)))
    opened = open_lines(path)
    sizes = [len(piece) async for piece in in_pieces(opened, iter(opened), 1000)]
    assert sizes == [1000, 1000, 500]
    assert opened.size == opened.bytes_read == path.stat().st_size
    opened.close()


async def test_an_error_of_the_reader_reaches_the_caller() -> None:
    opened = source(b"{\n")
    with pytest.raises(InvalidRecord):
        await anext(in_pieces(opened, read_records(opened, InputFormat.JSONL, Shape()), 10))


BOM = b"\xef\xbb\xbf"


def test_a_byte_order_mark_before_json_is_left_out() -> None:
    line = b'{"k":"a","v":1}'
    assert records(BOM + line + b"\n" + line, InputFormat.JSONL, Shape(key="k")) == [InputRecord(line, b"a")] * 2
    assert records(BOM + b"\n" + line, InputFormat.JSONL) == [InputRecord(line, None)]
    assert records(BOM + b'{"value":"a"}', InputFormat.RECORDS) == [InputRecord(b"a", None)]
    assert records(line + b"\n" + BOM + line, InputFormat.JSONL) == [InputRecord(line, None)] * 2, "joined files"


def test_a_key_separator_may_be_an_escape() -> None:
    assert records(b"a\tb", InputFormat.LINES, Shape(key_separator=r"\t")) == [InputRecord(b"b", b"a")]


def test_records_are_taken_whole() -> None:
    message = ledgermq.Message("t", 3, 7, b"\xff", b"\x00\xfe", (("h", b"\xff"), ("h", None)), 17, "red")
    [found] = records(json_line(message), InputFormat.RECORDS)
    assert found == InputRecord(message.value, message.key, None, message.headers, "red", 17, 3)
    common = Common((("more", b"1"),), None, None, Delay(), None, None, keep_partition=False)
    assert common.record(found)[:6] == (b"\x00\xfe", b"\xff", (*message.headers, ("more", b"1")), "red", 17, None)
    kept = dataclasses.replace(common, tag="blue", keep_partition=True).record(found)
    assert (kept.tag, kept.partition) == ("blue", 3)
    with pytest.raises(InvalidRecord, match="flights, line 1: there is no field 'value'"):
        records(b"{}", InputFormat.RECORDS)
    with pytest.raises(InvalidRequest, match="records have their own key"):
        records(b"", InputFormat.RECORDS, Shape(key="k"))

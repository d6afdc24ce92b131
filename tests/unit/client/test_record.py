"""Records and Arrow batches as programs give them: each checked alone, converted without loss,
refused with a reason.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from ledgermq.client.producing.arrow_rows import conform
from ledgermq.client.record import datetime_of, row_bytes, row_of, rows_to_arrow
from ledgermq.errors import InvalidRecord
from ledgermq.protocol.records import SCHEMA, record_bytes

NOW_US = 1_700_000_000_000_000


def row(value: Any = b"v", key: Any = None, headers: Any = None, tag: Any = None, timestamp: Any = None) -> Any:
    return row_of(value, key, headers, tag, timestamp, NOW_US)


def test_text_is_stored_as_utf8_and_missing_things_are_null() -> None:
    assert row("é", "ü") == ("ü".encode(), "é".encode(), None, NOW_US, None)
    assert row(None) == (None, None, None, NOW_US, None)


def test_views_are_copied() -> None:
    data = bytearray(b"abc")
    made = row(memoryview(data), data)
    data[0] = 0
    assert made[:2] == (b"abc", b"abc")


@pytest.mark.parametrize(
    "headers", [{"a": "1", "b": None}, [("a", b"1"), ("b", None)], iter([("a", b"1"), ("b", None)])]
)
def test_headers_may_be_a_mapping_or_pairs(headers: Any) -> None:
    assert row(headers=headers)[2] == [("a", b"1"), ("b", None)]


def test_a_timestamp_is_a_moment() -> None:
    moment = datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2)))
    assert datetime_of(row(timestamp=moment)[3]) == moment
    assert row(timestamp=-5)[3] == -5


@pytest.mark.parametrize(
    "bad",
    [
        {"value": 5},
        {"value": ["x"]},
        {"value": "\ud800"},
        {"key": 1.5},
        {"key": "\udfff"},
        {"headers": 5},
        {"headers": [("a",)]},
        {"headers": [(b"a", b"b")]},
        {"headers": {"a": 5}},
        {"headers": {"\ud800": b""}},
        {"headers": "ab"},
        {"tag": b"bytes"},
        {"tag": "\ud800"},
        {"timestamp": datetime(2020, 1, 1)},  # noqa: DTZ001 — that is the point
        {"timestamp": "2020"},
        {"timestamp": True},
        {"timestamp": 2**63},
        {"timestamp": -(2**63)},
    ],
)
def test_a_bad_record_is_refused_with_a_reason(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord, match=r"\w+ \w+"):
        row(**bad)


def test_the_size_of_a_row_is_what_brokers_count() -> None:
    rows = [row(b"12345", b"k", {"é": b"xyz", "n": None}), row(None), row(b"", b"", {})]
    assert (
        [row_bytes(each) for each in rows] == record_bytes(rows_to_arrow(rows)).to_pylist() == [5 + 1 + 2 + 3 + 1, 0, 0]
    )


def test_an_arrow_batch_is_completed_and_converted() -> None:
    given = pa.RecordBatch.from_pydict(
        {"value": pa.array(["a", None], pa.large_string()), "key": pa.array([b"k", b"l"], pa.binary_view())}
    )
    made = conform(given, NOW_US)
    assert made.schema == SCHEMA
    assert made.column("value").to_pylist() == [b"a", None]
    assert made.column("key").to_pylist() == [b"k", b"l"]
    assert made.column("timestamp").cast(pa.int64()).to_pylist() == [NOW_US, NOW_US]
    assert made.column("timestampType").to_pylist() == [0, 0]


def test_given_timestamps_are_kept_and_gaps_filled() -> None:
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    given = pa.RecordBatch.from_pydict(
        {"value": [b"a", b"b"], "timestamp": pa.array([moment, None], pa.timestamp("ms", "Europe/Berlin"))}
    )
    assert conform(given, NOW_US).column("timestamp").to_pylist() == [moment, datetime_of(NOW_US)]


@pytest.mark.parametrize(
    "bad",
    [
        pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())}),
        pa.RecordBatch.from_pydict({"key": [b"k"]}),
        pa.RecordBatch.from_pydict({"value": [b"v"], "offset": [1]}),
        pa.RecordBatch.from_arrays([pa.array([b"v"]), pa.array([b"v"])], names=["value", "value"]),
        pa.RecordBatch.from_pydict({"value": [1]}),
        pa.RecordBatch.from_pydict({"value": [b"v"], "headers": ["x"]}),
        pa.RecordBatch.from_pydict({"value": [b"v"], "tag": [b"\xff"]}),
        pa.RecordBatch.from_pydict({"value": [b"v"], "timestamp": pa.array([1], pa.timestamp("us"))}),
        pa.table({"value": [b"v"]}),
        [b"v"],
    ],
    ids=[
        "no rows",
        "no value",
        "unknown column",
        "twice",
        "numbers",
        "headers",
        "not utf8",
        "no zone",
        "table",
        "list",
    ],
)
def test_a_bad_arrow_batch_is_refused_with_a_reason(bad: Any) -> None:
    with pytest.raises(InvalidRecord):
        conform(bad, NOW_US)

"""Records and Arrow batches as programs give them: each checked alone, converted without loss,
refused with a reason.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from ledgermq.client.messages.columns import rows_to_arrow
from ledgermq.client.messages.record import datetime_of, row_bytes, row_of
from ledgermq.client.producing.arrow.rows import PIECE_ROWS_MAX, conform, pieces_of
from ledgermq.errors import InvalidRecord
from ledgermq.protocol.batches.records import HEADERS, SCHEMA, record_bytes

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


# -- Arrow data of any library
# ----------------------------------------------------------------------------------------------


def rows_of(given: Any) -> list[dict[str, Any]]:
    pieces = pieces_of(given, NOW_US)
    for piece in pieces:
        assert piece.rows.schema == SCHEMA
        piece.rows.validate(full=True)
    return [row for piece in pieces for row in piece.rows.to_pylist()]


class Exported:
    """An object of an unknown library, which exports one Arrow array."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        exported: tuple[object, object] = self._batch.__arrow_c_array__(requested_schema)
        return exported


MOMENT = datetime(2024, 2, 29, 12, tzinfo=UTC)
GIVEN = {
    "key": ["k", None],
    "value": ["a", "b"],
    "headers": [[{"key": "region", "value": b"eu"}], None],
    "tag": ["blue", None],
    "timestamp": [MOMENT, MOMENT],
    "partition": [1, None],
}


@pytest.mark.parametrize(
    "made",
    [
        pa.table,
        pa.RecordBatch.from_pydict,
        lambda given: Exported(pa.RecordBatch.from_pydict(given)),
        lambda given: pa.RecordBatchReader.from_batches(pa.table(given).schema, pa.table(given).to_batches(1)),
        lambda given: pa.concat_tables([pa.table(given).slice(0, 1), pa.table(given).slice(1)]),
        pl.DataFrame,
        pd.DataFrame,
        lambda given: pd.DataFrame(given, index=[7, 3]),
        lambda given: pd.DataFrame(given | {"tag": pd.Series(given["tag"], dtype="category")}),
        lambda given: pl.DataFrame(given).with_columns(pl.col("tag").cast(pl.Categorical)),
        lambda given: (
            pl.DataFrame({name: ["-", *column] for name, column in given.items()}, strict=False)
            .slice(1)
            .with_columns(
                headers=pl.Series(given["headers"]), timestamp=MOMENT, partition=pl.Series(given["partition"])
            )
        ),
    ],
    ids=[
        "pyarrow table",
        "pyarrow batch",
        "array of another library",
        "pyarrow reader",
        "chunks",
        "polars",
        "pandas",
        "pandas with an index",
        "pandas categories",
        "polars categories",
        "a slice of polars",
    ],
)
def test_data_of_every_library_gives_the_same_rows(made: Any) -> None:
    common = {"timestamp": MOMENT, "timestampType": 0}
    assert rows_of(made(GIVEN)) == [
        {"key": b"k", "value": b"a", "headers": [{"key": "region", "value": b"eu"}], "tag": "blue"} | common,
        {"key": None, "value": b"b", "headers": None, "tag": None} | common,
    ]
    numbers = [piece.partitions.to_pylist() for piece in pieces_of(made(GIVEN), NOW_US) if piece.partitions is not None]
    assert [number for part in numbers for number in part] == [1, None]


PAIR = {"key": "region", "value": b"eu"}
MANY = [None] * (PIECE_ROWS_MAX + 1) + [[{"key": None, "value": b"eu"}]]


def test_large_data_comes_in_pieces_that_keep_the_order_and_the_partitions() -> None:
    count = PIECE_ROWS_MAX + 10
    frame = pl.DataFrame({"value": [f"{n}" for n in range(count)], "partition": [n % 7 for n in range(count)]})
    pieces = [*pieces_of(frame, NOW_US)]
    assert [piece.rows.num_rows for piece in pieces] == [PIECE_ROWS_MAX, 10]
    numbers = [number for piece in pieces for number in (piece.partitions or pa.array([])).to_pylist()]
    assert numbers == [n % 7 for n in range(count)]
    assert pieces[1].rows.column("value").to_pylist() == [b"%d" % n for n in range(PIECE_ROWS_MAX, count)]
    wide = pa.table({"value": [b"x" * 4_000_000] * 9, "partition": list(range(9))})
    pieces = [*pieces_of(wide, NOW_US)]
    assert len(pieces) > 1
    assert [number for piece in pieces for number in (piece.partitions or pa.array([])).to_pylist()] == list(range(9))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (pa.table({"value": pa.array([], pa.binary())}), "no rows"),
        (pa.table({"value": pa.array([], pa.binary()), "x": pa.array([], pa.int8())}), "drop or rename 'x'"),
        (pa.table({"key": ["k"]}), "'value' is missing"),
        (pa.table([["a"], ["b"]], names=["value", "value"]), "'value' is there more than once"),
        (pa.table([["a"], [1], [2]], names=["value", "partition", "partition"]), "'partition' is there more than once"),
        (pa.table({"value": ["a"], "topic": ["t"], "offset": [1]}), "drop or rename 'topic', 'offset'"),
        (pl.DataFrame({"value": [1.5]}), "the column value has type double"),
        (pl.DataFrame({"value": ["a"], "headers": ["x"]}), "the column headers has type"),
        (pd.DataFrame({"value": ["a"], "headers": [[{"name": "a", "value": "x"}]]}), "the column headers has type"),
        (pd.DataFrame({"value": ["a"], "headers": [{"region": "eu"}]}), "the column headers has type"),
        (pd.DataFrame({"value": ["a"], "timestamp": [datetime(2020, 1, 1)]}), "no time zone"),  # noqa: DTZ001
        (
            pd.DataFrame({"value": ["a"], "timestamp": [pd.Timestamp(1, unit="ns", tz="UTC")]}),
            "the column timestamp .* without loss",
        ),
        (pd.DataFrame({"value": ["a", 1]}), "the DataFrame cannot be read"),
        (pd.DataFrame({"value": ["a"], "partition": [0.5]}), "the column partition must have whole numbers"),
        (pd.DataFrame({"value": ["a"], "partition": ["x"]}), "the column partition must have whole numbers"),
        (pa.table({"value": ["a"], "timestamp": [1764330000000]}), "timestamp has type int64.*cast it"),
        (pa.table({"value": ["a"], "timestamp": [1.5]}), "timestamp has type double"),
        (pa.table({"value": ["a"], "timestamp": [date(2020, 1, 1)]}), "timestamp has type date32"),
        (pa.table({"value": ["a"], "timestamp": ["2020-01-01T00:00:00Z"]}), "timestamp has type string"),
        (pa.table({"value": ["a"], "tag": [5]}), "tag has type int64; it must be text"),
        (
            pa.table({"value": ["a"], "headers": pa.array([[PAIR]], pa.list_view(HEADERS.value_type))}),
            "headers has type",
        ),
        (pa.table({"value": ["a", "b"], "headers": pa.array([[PAIR], [None]], HEADERS)}), "row 1 has a header without"),
        (
            pa.table({"value": ["a"] * (PIECE_ROWS_MAX + 2), "headers": pa.array(MANY, HEADERS)}),
            f"row {PIECE_ROWS_MAX + 1} has a header without",
        ),
        (pl.Series("value", ["a"]), "the Series cannot be read"),
        (pa.array([1]), "the Int64Array cannot be read"),
        ([b"v"], "expected Arrow data: .*; not list"),
        (None, "expected Arrow data: .*; not NoneType"),
    ],
)
def test_bad_data_is_refused_with_what_to_do(given: Any, reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason):
        pieces_of(given, NOW_US)

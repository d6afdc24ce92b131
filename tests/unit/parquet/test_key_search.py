"""Which rows have a key, and when the statistics of a row group deny it."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from ledgermq_ledger.parquet.files.columns import SCHEMA, open_writer
from ledgermq_ledger.parquet.files.key_search import may_hold_key, rows_with_key

keys = st.one_of(st.none(), st.binary(max_size=3), st.binary(min_size=4090, max_size=4100))


def footer_of(given_keys: list[bytes | None]) -> pq.FileMetaData:
    rows = len(given_keys)
    columns = [
        pa.array(given_keys, pa.binary()) if field.name == "key" else pa.nulls(rows, field.type) for field in SCHEMA
    ]
    sink = io.BytesIO()
    with open_writer(pa.PythonFile(sink, mode="w"), {}) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA))
    return pq.read_metadata(io.BytesIO(sink.getvalue()))


@given(st.lists(keys, min_size=1, max_size=40), keys)
def test_a_row_group_is_passed_only_if_it_lacks_the_key(held: list[bytes | None], other: bytes | None) -> None:
    footer = footer_of(held)
    for key in {*held, other} - {None}:
        rows = rows_with_key(pa.array(held, pa.binary()), key)
        assert rows == [row for row, each in enumerate(held) if each == key]
        assert may_hold_key(footer, 0, key) or not rows


def test_statistics_deny_keys() -> None:
    footer = footer_of([b"b", b"d", None])
    assert [may_hold_key(footer, 0, key) for key in (b"a", b"b", b"c", b"d", b"e")] == [False, True, True, True, False]
    assert not may_hold_key(footer_of([None, None]), 0, b"a")

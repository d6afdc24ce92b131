"""The rows of headers, and names that are missing, where lists that are null have content behind them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ledgermq.protocol.batches.record_rules import rows_of_headers

PAIRS = pa.StructArray.from_arrays([pa.array(["a", "b", "c"]), pa.array([b"1", b"2", b"3"])], ["key", "value"])


@pytest.mark.parametrize(
    ("offsets", "nulls", "rows"),
    [
        ([0, 1, 2, 3], [False, False, False], [0, 1, 2]),
        ([0, 1, 2, 3], [False, True, False], [0, 2]),
        ([0, 3, 3, 3], [True, False, False], []),
        ([0, 0, 2, 3], [False, False, True], [1, 1]),
    ],
)
def test_each_header_has_its_row(offsets: list[int], nulls: list[bool], rows: list[int]) -> None:
    headers = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), PAIRS, mask=pa.array(nulls))
    assert rows_of_headers(headers).to_pylist() == rows
    assert len(pc.list_flatten(headers)) == len(rows)
    assert rows_of_headers(headers.slice(1)).to_pylist() == [row - 1 for row in rows if row]

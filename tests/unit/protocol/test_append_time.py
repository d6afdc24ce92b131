"""One timestamp in all records of an encoded batch: the other columns keep their bytes, and what comes out
is a batch like any other.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.protocol.batches.append_time import with_append_time
from ledgermq.protocol.batches.batch_header import walk_batch
from ledgermq.protocol.batches.records import DECODED_BYTES_MAX, SCHEMA, decode_batch, encode_batch
from tests.worlds.batches import BUFFERS, batch_of, get_pair, nulls_with_content, record_batches, serialize, with_pair

Codec = Literal["none", "lz4", "zstd"]
CODECS: list[Codec] = ["none", "lz4", "zstd"]
AT_US = 1_790_000_000_123_456


def stamped(batch: pa.RecordBatch, at_us: int) -> pa.RecordBatch:
    """What has to come out, made by Arrow."""
    times = pa.array([at_us] * batch.num_rows, pa.int64()).view(SCHEMA.field("timestamp").type)
    types = pa.array([1] * batch.num_rows, pa.int32())
    found = batch.set_column(3, SCHEMA.field("timestamp"), times)
    return found.set_column(4, SCHEMA.field("timestampType"), types)


@given(record_batches(), st.sampled_from(CODECS), st.integers(0, 4_000_000_000_000_000))
def test_all_other_columns_stay(batch: pa.RecordBatch, codec: Codec, at_us: int) -> None:
    data = with_append_time(encode_batch(batch, codec), at_us)
    info = walk_batch(data, decoded_bytes_max=DECODED_BYTES_MAX)
    assert (info.record_count, info.codec) == (batch.num_rows, codec)
    assert decode_batch(data).equals(stamped(batch, at_us))
    assert decode_batch(with_append_time(memoryview(data), at_us + 1)).equals(stamped(batch, at_us + 1))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rows", [1, 3, 17, 5000])
def test_batches_of_any_size(rows: int, codec: Codec) -> None:
    batch = batch_of(
        [{"key": b"k", "value": b"v" * (at % 90), "timestamp": at, "timestampType": 0} for at in range(rows)]
    )
    before = encode_batch(batch, codec)
    data = with_append_time(before, AT_US)
    assert decode_batch(data).equals(stamped(batch, AT_US))
    if codec == "none":
        assert len(data) == len(before)
    else:
        assert len(data) < len(before) + 100


def test_values_behind_nulls_stay_hidden() -> None:
    batch = nulls_with_content()
    assert decode_batch(with_append_time(encode_batch(batch), AT_US)).equals(stamped(batch, AT_US))


def test_nothing_else_of_a_producers_header_is_kept() -> None:
    batch = batch_of([{"value": b"v", "timestamp": 1}])
    data = serialize(batch, {"note": "of the producer"})
    assert b"of the producer" in data
    made = with_append_time(data, AT_US)
    assert b"of the producer" not in made
    assert decode_batch(made).equals(stamped(batch, AT_US))


def test_empty_buffers_may_stand_anywhere() -> None:
    batch = batch_of([{"value": b"v", "timestamp": 1}])
    data = encode_batch(batch)
    size = len(data) - data.index(b"v") // 8 * 8
    empty = [number for number in range(22) if get_pair(data, BUFFERS, number)[1] == 0]
    assert empty
    for number in empty:
        data = with_pair(data, BUFFERS, number, min(8, size), 0)
    assert decode_batch(with_append_time(data, AT_US)).equals(stamped(batch, AT_US))

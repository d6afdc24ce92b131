"""Records through their encoding and back: any codec, null columns, headers, slices; and what is
refused on either side.
"""

from __future__ import annotations

import random
from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.errors import CorruptFrame, InvalidRecord, MessageTooLarge
from ledgermq.protocol.batches.batch_header import walk_batch
from ledgermq.protocol.batches.records import (
    END_OF_STREAM,
    SCHEMA,
    data_bytes_at_most,
    decode_batch,
    encode_batch,
    largest_record_bytes,
    record_bytes,
    schema_prefix,
)
from tests.worlds.batches import BUFFERS, batch_of, get_pair, nulls_with_content, record_batches, serialize

CODECS = st.sampled_from(["none", "lz4", "zstd"])
Codec = Literal["none", "lz4", "zstd"]


@given(record_batches(), CODECS)
def test_encoded_records_come_back(batch: pa.RecordBatch, codec: Codec) -> None:
    data = encode_batch(batch, codec)
    assert data == serialize(batch, compression=None if codec == "none" else codec)
    assert decode_batch(data).equals(batch)
    assert decode_batch(memoryview(data)).equals(batch)
    assert walk_batch(data, decoded_bytes_max=1 << 20).record_count == batch.num_rows


@given(st.lists(st.tuples(record_batches(), CODECS), min_size=1, max_size=4))
@settings(max_examples=50)
def test_encoded_batches_behind_the_schema_are_an_arrow_stream(batches: list[tuple[pa.RecordBatch, Codec]]) -> None:
    stream = schema_prefix() + b"".join(encode_batch(batch, codec) for batch, codec in batches) + END_OF_STREAM
    assert pa.ipc.open_stream(stream).read_all().equals(pa.Table.from_batches([batch for batch, _ in batches]))


@given(record_batches())
def test_a_slice_is_encoded_without_the_rest(batch: pa.RecordBatch) -> None:
    longer = pa.concat_batches([batch_of([{"value": bytes(50_000)}]), batch])
    assert len(encode_batch(longer.slice(1))) < len(encode_batch(batch)) + 1000


@given(record_batches())
def test_record_bytes_counts_key_value_and_headers(batch: pa.RecordBatch) -> None:
    def size(row: dict[str, object]) -> int:
        pairs = row["headers"] or []
        parts = [row["key"], row["value"], *(p["value"] for p in pairs)]  # type: ignore[attr-defined]
        return sum(len(part) for part in parts if part) + sum(len(p["key"].encode()) for p in pairs if p["key"])  # type: ignore[arg-type,attr-defined]

    expected = [size(row) for row in batch.to_pylist()]
    assert record_bytes(batch).to_pylist() == expected
    assert largest_record_bytes(batch) == max(expected)
    assert sum(expected) <= data_bytes_at_most(batch)
    assert len(expected) < 3 or sum(expected[1:-1]) <= data_bytes_at_most(batch.slice(1, len(expected) - 2))
    assert sum(expected) <= data_bytes_at_most(decode_batch(encode_batch(batch, "lz4")))


def test_a_batch_of_plain_values_takes_hardly_more_than_its_data() -> None:
    batch = batch_of([{"value": bytes(100)}] * 1000)
    assert 100_000 <= data_bytes_at_most(batch) < 101_000
    assert 50_000 <= data_bytes_at_most(batch.slice(300, 500)) < 51_000


def test_nulls_may_have_content_behind_them() -> None:
    """Arrow allows it, and no reader sees it: null lists with pairs, null pairs with keys, null
    keys with bytes.
    """
    batch = nulls_with_content()
    assert batch.column("headers").to_pylist() == [
        [{"key": "h", "value": b"12"}, None],
        None,
        [{"key": None, "value": b"56"}],
    ]
    assert record_bytes(batch).to_pylist() == [4, 1, 3]
    for codec in ("none", "lz4", "zstd"):
        decoded = decode_batch(encode_batch(batch, codec))
        assert decoded.equals(batch)
        assert record_bytes(decoded.slice(1)).to_pylist() == [1, 3]
        assert data_bytes_at_most(decoded) >= 8


def test_records_without_rows_or_of_other_schemas_are_not_encoded() -> None:
    with pytest.raises(InvalidRecord, match="at least one row"):
        encode_batch(batch_of([{}]).slice(0, 0))
    with pytest.raises(InvalidRecord, match="must have the columns"):
        encode_batch(pa.record_batch({"value": pa.array([b"v"])}))
    with pytest.raises(InvalidRecord, match="must have the columns"):
        encode_batch(batch_of([{}]).set_column(5, "tag", pa.nulls(1, pa.large_string())))


@pytest.mark.parametrize("column", [f.name for f in SCHEMA])
@pytest.mark.parametrize(
    "kind", [pa.large_binary(), pa.int64(), pa.bool_(), pa.timestamp("ns"), pa.list_(pa.binary())], ids=str
)
def test_a_batch_of_another_schema_is_refused_or_read_as_ours_without_a_crash(column: str, kind: pa.DataType) -> None:
    """A message says nothing of its types: where the buffers fit ours by chance, they are read as
    ours, and validated as such.
    """
    values = batch_of(
        [{"key": b"k", "value": b"v", "tag": "t", "headers": [{"key": "h", "value": b"v"}], "timestamp": 1}] * 5
    )
    other = values.set_column(SCHEMA.get_field_index(column), column, _filled(kind))
    data = serialize(other)
    try:
        batch = decode_batch(data)
    except CorruptFrame:
        return
    assert batch.schema == SCHEMA
    assert batch.num_rows == 5
    assert len(batch.column("value").to_pylist()) == 5


def _filled(kind: pa.DataType) -> pa.Array:
    values = {
        pa.large_binary(): b"x" * 9,
        pa.int64(): 1 << 40,
        pa.bool_(): True,
        pa.timestamp("ns"): 1 << 40,
        pa.list_(pa.binary()): [b"x"],
    }
    return pa.array([values[kind]] * 5, kind)


def patched_body(data: bytes, buffer: int, content: bytes) -> bytes:
    start = 8 + int.from_bytes(data[4:8], "little") + get_pair(data, BUFFERS, buffer)[0]
    return data[:start] + content + data[start + len(content) :]


TWO = serialize(batch_of([{"key": b"kk", "value": b"vv", "tag": "tt", "headers": [{"key": "h", "value": b"v"}]}] * 2))


@pytest.mark.parametrize(
    ("buffer", "content"),
    [
        pytest.param(1, b"\0\0\0\0\xff\xff\xff\x7f\x04\0\0\0", id="key offsets beyond the data"),
        pytest.param(4, b"\0\0\0\0\x03\0\0\0\x02\0\0\0", id="value offsets that go back"),
        pytest.param(4, b"\xff\xff\xff\xff\x02\0\0\0\x04\0\0\0", id="a negative value offset"),
        pytest.param(7, b"\0\0\0\0\x01\0\0\0\x09\0\0\0", id="more headers than there are"),
        pytest.param(20, b"\0\0\0\0\x02\0\0\0\xff\0\0\0", id="tag offsets beyond the data"),
        pytest.param(21, b"\xff\xfe", id="a tag that is no UTF-8"),
        pytest.param(11, b"\xc0", id="a header's key that is no UTF-8"),
    ],
)
def test_values_that_do_not_hold_together_are_found_by_decoding(buffer: int, content: bytes) -> None:
    """The walker looks at no value, so it lets these pass. A reader must not touch a value of them."""
    broken = patched_body(TWO, buffer, content)
    assert walk_batch(broken, decoded_bytes_max=1 << 20).record_count == 2
    with pytest.raises(CorruptFrame, match="not a valid Arrow record batch"):
        decode_batch(broken)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_that_are_garbage_or_of_another_length_are_refused(codec: Codec) -> None:
    rng = random.Random(1)
    data = encode_batch(batch_of([{"value": b"v" * 5000}]), codec)
    start = 8 + int.from_bytes(data[4:8], "little")
    offset, length = get_pair(data, BUFFERS, 5)
    at = start + offset
    assert int.from_bytes(data[at : at + 8], "little") == 5000
    with pytest.raises(CorruptFrame):
        decode_batch(data[: at + 8] + rng.randbytes(length - 8) + data[at + length :])
    for claimed in (4999, 5001, 100_000):
        with pytest.raises(CorruptFrame):
            decode_batch(data[:at] + claimed.to_bytes(8, "little") + data[at + 8 :])


def test_a_batch_over_the_limit_is_not_decoded() -> None:
    with pytest.raises(MessageTooLarge):
        decode_batch(encode_batch(batch_of([{"value": bytes(1 << 20)}]), "zstd"), decoded_bytes_max=1 << 20)

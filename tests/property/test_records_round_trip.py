"""What a program sends is what a program reads: through rows, Arrow, compression and messages."""

from __future__ import annotations

from datetime import UTC

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.consuming.message import TABLE_SCHEMA, Message, decode_run, messages_of, table_of
from ledgermq.client.messages.columns import rows_to_arrow
from ledgermq.client.messages.record import Row, row_of
from ledgermq.errors import CorruptFrame
from ledgermq.protocol.batches.records import Compression, encode_batch

BYTES = st.none() | st.binary(max_size=50)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
HEADERS = st.none() | st.lists(st.tuples(TEXT, BYTES), max_size=3)
ROWS = st.builds(
    lambda value, key, headers, tag, timestamp: row_of(value, key, headers, tag, timestamp, 0),
    BYTES,
    BYTES,
    HEADERS,
    st.none() | TEXT,
    st.datetimes(timezones=st.just(UTC)) | st.integers(-(10**15), 10**16),
)


@given(st.lists(ROWS, min_size=1, max_size=30), st.sampled_from(["none", "lz4", "zstd"]), st.integers(0, 2**62))
def test_messages_are_what_was_sent(rows: list[Row], compression: Compression, offset: int) -> None:
    data = encode_batch(rows_to_arrow(rows), compression)
    decoded = decode_run(data, crc32c(data), len(rows), 2**28, "t/0")
    assert messages_of(decoded, "t", 3, offset) == [
        Message("t", 3, offset + number, key, value, tuple(headers or ()), timestamp_us, tag)
        for number, (key, value, headers, timestamp_us, tag) in enumerate(rows)
    ]


@given(st.lists(ROWS, min_size=2, max_size=30), st.integers(0, 10**9), st.data())
def test_a_part_of_a_batch_has_the_offsets_and_rows_of_that_part(
    rows: list[Row], offset: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    part = rows_to_arrow(rows).slice(start)
    messages = messages_of(part, "t", 0, offset + start)
    assert messages == messages_of(rows_to_arrow(rows), "t", 0, offset)[start:]
    table = pa.Table.from_batches([table_of(part, "t", 0, offset + start)], TABLE_SCHEMA)
    assert table["offset"].to_pylist() == [message.offset for message in messages]
    assert table["value"].to_pylist() == [message.value for message in messages]


@given(st.lists(ROWS, min_size=1, max_size=5), st.data())
def test_a_changed_byte_is_noticed_and_the_place_is_named(rows: list[Row], data: st.DataObject) -> None:
    good = encode_batch(rows_to_arrow(rows))
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptFrame, match="flights/7"):
        decode_run(bytes(bad), crc32c(good), len(rows), 2**28, "flights/7")


def test_a_batch_with_other_rows_than_announced_is_refused() -> None:
    data = encode_batch(rows_to_arrow([row_of(b"v", None, None, None, None, 0)]))
    with pytest.raises(CorruptFrame, match="1 records, its header says 2"):
        decode_run(data, crc32c(data), 2, 2**28, "t/0")

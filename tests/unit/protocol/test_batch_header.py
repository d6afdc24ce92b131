"""The walker of batch headers: every rule refuses what it is for, and what the walker lets pass
pyarrow sees in the same way.
"""

from __future__ import annotations

import random
from itertools import product

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.errors import CorruptFrame, MessageTooLarge
from ledgermq.protocol.batches.batch_header import BatchInfo, check_crc, walk_batch
from ledgermq.protocol.batches.records import END_OF_STREAM, SCHEMA, decode_batch, schema_prefix
from tests.worlds.batches import (
    BODY_LENGTH,
    BUFFERS,
    CODEC,
    COMPRESSION,
    HEADER_TYPE,
    NODES,
    ROWS,
    VERSION,
    batch_of,
    get_pair,
    mutate,
    record_batches,
    seeded_batch,
    serialize,
    with_pair,
    with_value,
    without_field,
)

MIB = 1024 * 1024
V4, V5 = pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5
WRITINGS = list(product((None, "lz4", "zstd"), (V4, V5)))

ROW = {
    "key": b"key",
    "value": b"value" * 20,
    "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    "timestamp": 1_700_000_000_000_000,
    "timestampType": 0,
    "tag": "tag",
}
PLAIN = serialize(batch_of([ROW, {}, ROW]))
ZSTD = serialize(batch_of([ROW, {}, ROW] * 40), compression="zstd")
ROW_NODES = (0, 1, 2, 6, 7, 8)


def walk(data: bytes, decoded_bytes_max: int = MIB) -> BatchInfo:
    return walk_batch(data, decoded_bytes_max=decoded_bytes_max)


def touch(batch: pa.RecordBatch) -> None:
    """Read every value. Any 64-bit number may stand for a time: Python's datetime does not reach
    that far.
    """
    for column in batch.columns:
        (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


def refused(data: bytes, why: str) -> None:
    with pytest.raises(CorruptFrame, match=why):
        walk(data)


# What pyarrow writes is accepted, however it writes it.


@pytest.mark.parametrize(("compression", "version"), WRITINGS)
@given(batch=record_batches())
@settings(max_examples=40)
def test_every_batch_that_pyarrow_encodes_from_the_schema_is_accepted(
    batch: pa.RecordBatch, compression: str | None, version: object
) -> None:
    info = walk(serialize(batch, compression=compression, metadata_version=version))
    assert info.record_count == batch.num_rows
    assert info.codec == (compression or "none")


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_messages_written_with_alignment_64_are_accepted(compression: str | None) -> None:
    """As RecordBatch.serialize and other writers of Arrow lay buffers out."""
    batch = batch_of([ROW] * 9)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(batch)
    message = pa.ipc.MessageReader.open_stream(sink.getvalue())
    message.read_next_message()
    data = message.read_next_message().serialize(alignment=64).to_pybytes()
    assert walk(data).record_count == 9
    assert decode_batch(data).equals(batch)


def test_empty_validity_buffers_are_accepted() -> None:
    batch = batch_of([{**ROW, "headers": [{"key": "h", "value": b"1"}]}] * 3)
    assert all(get_pair(serialize(batch), BUFFERS, i)[1] == 0 for i in (0, 3, 6, 8, 9, 12, 15, 17, 19))
    assert walk(serialize(batch)) == BatchInfo(
        3, sum(get_pair(serialize(batch), BUFFERS, i)[1] for i in range(22)), "none"
    )


def test_empty_buffers_may_name_any_place() -> None:
    """Some writers give 0 as the place of a buffer without bytes."""
    batch = batch_of([{"value": b"v"}] * 3)
    data = serialize(batch)
    empty = [i for i in range(22) if get_pair(data, BUFFERS, i)[1] == 0]
    assert empty
    for i in empty:
        data = with_pair(data, BUFFERS, i, 0, 0)
    assert decode_batch(data).equals(batch)


def test_custom_metadata_of_version_5_is_harmless() -> None:
    assert walk(serialize(batch_of([ROW]), {"trace": "7"})).record_count == 1


@pytest.mark.parametrize(("compression", "version"), WRITINGS)
def test_messages_behind_one_schema_are_an_arrow_stream(compression: str | None, version: object) -> None:
    batch = batch_of([ROW, {}, ROW])
    message = serialize(batch, compression=compression, metadata_version=version)
    stream = schema_prefix() + message + PLAIN + message + END_OF_STREAM
    assert pa.ipc.open_stream(stream).read_all().num_rows == 9


def test_incompressible_buffers_are_counted_by_what_they_hold() -> None:
    batch = batch_of([{"value": random.Random(1).randbytes(5000)}])
    assert 5000 <= walk(serialize(batch, compression="lz4")).decoded_bytes <= 5200


# Each rule.


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"\0" * 200, b"\xff" * 200, b"not arrow at all" * 8],
    ids=["empty", "0", "zeros", "ones", "text"],
)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFrame):
        walk(data)


@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    for tried in (data, PLAIN[:8] + data):
        with pytest.raises(CorruptFrame):
            walk(tried)


@pytest.mark.parametrize("message", [PLAIN, ZSTD], ids=["plain", "zstd"])
def test_a_message_cut_anywhere_is_refused(message: bytes) -> None:
    for length in range(len(message)):
        with pytest.raises(CorruptFrame):
            walk(message[:length])


def test_bytes_behind_the_message_are_refused() -> None:
    refused(PLAIN + b"\0" * 8, "its body has")
    refused(PLAIN + PLAIN, "its body has")


def test_parts_that_are_not_aligned_are_refused() -> None:
    metadata_end = 8 + int.from_bytes(PLAIN[4:8], "little")
    for extra in (1, 4):
        length = (metadata_end - 8 + extra).to_bytes(4, "little")
        refused(PLAIN[:4] + length + PLAIN[8:metadata_end] + b"\0" * extra + PLAIN[metadata_end:], "multiples of 8")
    offset, length = get_pair(PLAIN, BUFFERS, 20)
    refused(with_pair(PLAIN, BUFFERS, 20, offset + 4, length - 4), "does not begin on a multiple")


def test_other_messages_are_refused() -> None:
    refused(schema_prefix(), "not a record batch")
    refused(with_value(PLAIN, HEADER_TYPE, "<B", 2), "the message has type 2")
    refused(serialize(batch_of([ROW]), use_legacy_format=True), "not an Arrow IPC message")


def test_old_and_unknown_metadata_versions_are_refused() -> None:
    for version in (0, 1, 2, 5, 255):
        refused(with_value(PLAIN, VERSION, "<B", version), "metadata version")


def test_zero_and_negative_rows_are_refused() -> None:
    refused(serialize(batch_of([ROW]).slice(0, 0)), "0 rows")
    refused(with_value(PLAIN, ROWS, "<q", -1), "-1 rows")


def test_a_body_length_that_is_wrong_is_refused() -> None:
    for wrong in (0, 8, len(PLAIN), -8, 2**62):
        refused(with_value(PLAIN, BODY_LENGTH, "<q", wrong), "its body has")


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("value", pa.binary())]),
        pa.schema([*SCHEMA, pa.field("more", pa.int64())]),
        pa.schema([pa.field(f.name, pa.binary_view()) if f.name == "value" else f for f in SCHEMA]),
        pa.schema([pa.field(f.name, pa.dictionary(pa.int8(), pa.string())) if f.name == "tag" else f for f in SCHEMA]),
    ],
    ids=["fewer columns", "more columns", "views", "dictionary"],
)
def test_other_schemas_are_refused(schema: pa.Schema) -> None:
    batch = pa.RecordBatch.from_arrays([pa.nulls(3, f.type) for f in schema], schema=schema)
    messages = pa.ipc.MessageReader.open_stream(_stream(batch))
    found = list(messages)[-1].serialize().to_pybytes()
    with pytest.raises(CorruptFrame):
        walk(found)


def _stream(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def test_columns_that_differ_in_length_are_refused() -> None:
    for node in ROW_NODES:
        refused(with_pair(PLAIN, NODES, node, 2, 0), "columns differ in length")
    refused(with_pair(PLAIN, NODES, 4, 3, 0), "parts of its headers")


def test_null_counts_that_cannot_be_are_refused() -> None:
    for nulls in (-1, 4, 2**62):
        refused(with_pair(PLAIN, NODES, 0, 3, nulls), "nulls among 3 values")


def test_a_tiny_message_cannot_claim_a_huge_number_of_rows() -> None:
    for rows in (1000, 10**9, 2**31, 2**62):
        claim = with_value(PLAIN, ROWS, "<q", rows)
        for node in ROW_NODES:
            claim = with_pair(claim, NODES, node, rows, 0)
        refused(claim, "too short")


def test_a_tiny_message_cannot_claim_a_huge_number_of_headers() -> None:
    for count in (10**9, 2**62):
        claim = PLAIN
        for node in (3, 4, 5):
            claim = with_pair(claim, NODES, node, count, 0)
        refused(claim, "too short")


@pytest.mark.parametrize("index", range(22))
def test_each_buffer_has_to_be_long_enough(index: int) -> None:
    """All but the data of binary columns, whose end only their values tell."""
    offset, length = get_pair(PLAIN, BUFFERS, index)
    if index in (2, 5, 11, 14, 21) or not length:
        return
    needed = {1: 16, 4: 16, 7: 16, 10: 20, 13: 20, 16: 24, 18: 12, 20: 16}.get(index, 1)
    assert walk(with_pair(PLAIN, BUFFERS, index, offset, needed)).record_count == 3
    refused(with_pair(PLAIN, BUFFERS, index, offset, needed - 1), "too short")


def test_buffers_outside_of_the_body_are_refused() -> None:
    body = len(PLAIN)
    for offset, length in (
        (body, 8),
        (0, 2**62),
        (2**62, 8),
        (-8, 8),
        (0, -8),
        (2**63 - 8, 2**63 - 8),
        (body, 0),
        (-8, 0),
    ):
        refused(with_pair(PLAIN, BUFFERS, 5, offset, length), "outside of the message")


def test_buffers_that_overlap_are_refused() -> None:
    """One kilobyte could otherwise stand for each of twenty columns."""
    offset, length = get_pair(PLAIN, BUFFERS, 1)
    refused(with_pair(PLAIN, BUFFERS, 4, offset, length), "in another")
    refused(with_pair(PLAIN, BUFFERS, 1, offset, length + 8), "in another")


def test_unknown_codecs_are_refused() -> None:
    refused(with_value(ZSTD, CODEC, "<B", 2), "unknown compression")
    refused(with_value(ZSTD, CODEC, "<B", 255), "unknown compression")


def test_decompression_bombs_are_refused_by_what_they_claim() -> None:
    for compression in ("lz4", "zstd"):
        bomb = serialize(batch_of([{"value": bytes(8 * MIB)}]), compression=compression)
        assert len(bomb) < MIB
        with pytest.raises(MessageTooLarge, match="decodes to"):
            walk(bomb, 8 * MIB)
        assert walk(bomb, 9 * MIB).decoded_bytes > 8 * MIB


def test_claims_of_several_buffers_are_added_up() -> None:
    bomb = serialize(batch_of([{"key": bytes(MIB), "value": bytes(MIB), "tag": "x" * MIB}]), compression="zstd")
    with pytest.raises(MessageTooLarge):
        walk(bomb, 2 * MIB)


def test_a_buffer_that_claims_a_negative_length_is_refused() -> None:
    body = 8 + int.from_bytes(ZSTD[4:8], "little")
    offset, _ = get_pair(ZSTD, BUFFERS, 4)
    at = body + offset
    refused(ZSTD[:at] + (-2).to_bytes(8, "little", signed=True) + ZSTD[at + 8 :], "claims to decode to -2 bytes")


def test_a_codec_named_in_custom_metadata_is_refused() -> None:
    """Arrow 0.17 named the codec there, and pyarrow still obeys it in version 4: a bomb that the
    header proper does not show.
    """
    hidden = without_field(
        serialize(
            batch_of([{"value": bytes(8 * MIB)}]),
            {"ARROW:experimental_compression": "zstd"},
            compression="zstd",
            metadata_version=V4,
        ),
        COMPRESSION,
    )
    assert len(hidden) < MIB
    assert pa.ipc.read_record_batch(pa.py_buffer(hidden), SCHEMA).nbytes > 8 * MIB
    refused(hidden, "custom metadata")


def test_a_wrong_checksum_is_refused() -> None:
    check_crc(PLAIN, crc32c(PLAIN))
    for wrong in (PLAIN[:-1] + b"\x01", PLAIN[1:], b""):
        with pytest.raises(CorruptFrame, match="checksum"):
            check_crc(wrong, crc32c(PLAIN))


# The walker and pyarrow, side by side.


@given(st.integers(0, 2**63))
@settings(max_examples=1500)
def test_what_walker_and_pyarrow_both_accept_has_the_same_rows_and_no_more_bytes(seed: int) -> None:
    rng = random.Random(seed)
    compression, version = rng.choice(WRITINGS)
    valid = serialize(seeded_batch(rng), compression=compression, metadata_version=version)
    data = mutate(rng, valid, PLAIN)
    try:
        info = walk(data, 64 * MIB)
        batch = decode_batch(data, 64 * MIB)
    except (CorruptFrame, MessageTooLarge):
        return
    assert batch.num_rows == info.record_count
    assert batch.get_total_buffer_size() <= info.decoded_bytes + 64 * 22, "buffers are padded to 64 bytes at most"
    touch(batch)


@given(st.integers(0, 2**63))
@settings(max_examples=300)
def test_a_changed_number_in_the_header_is_refused_or_harmless(seed: int) -> None:
    """Aimed: nodes and buffers are a few hundred of the bytes, and the ones that matter."""
    rng = random.Random(seed)
    data = rng.choice((PLAIN, ZSTD))
    for _ in range(rng.choice((1, 2))):
        path, count = rng.choice(((NODES, 9), (BUFFERS, 22)))
        index = rng.randrange(count)
        pair = list(get_pair(data, path, index))
        which = rng.randrange(2)
        pair[which] = min(2**63 - 1, pair[which] + rng.choice((-64, -8, -1, 1, 8, 64, 2**31, 2**62)))
        data = with_pair(data, path, index, *pair)
    try:
        info = walk(data)
        batch = decode_batch(data)
    except (CorruptFrame, MessageTooLarge):
        return
    assert batch.num_rows == info.record_count
    touch(batch)

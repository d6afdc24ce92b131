"""Blocks of timed messages: what is encoded comes back; bytes of others are read or refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.protocol.batches.records import encode_batch
from ledgermq_broker.timed.state.blocks import Ids, decode_block, effective_dues, encode_block, lowest_due_us
from ledgermq_broker.timed.state.format import ledgermq_timers_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from tests.property.timer_log import batch_of
from tests.worlds.batches import mutate

TARGET = PartitionId(2**64 - 1, 2**32 - 1)
DATA = encode_batch(batch_of([1, 2, 3], [30, 10, 20]))
IDS = Ids(pa.array([7, 9, 2**63 - 2], pa.int64()), pa.array([0, 2**32 - 2, 1], pa.uint32()))
HEADER = fmt.BlockHeader(version=1, topic_id=7, floor_us=5)


def test_a_block_of_the_intake_comes_back() -> None:
    record = encode_block(TARGET, 15, DATA)
    block = decode_block(record.key, record.value)
    assert (block.target, block.floor_us, block.ids) == (TARGET, 15, None)
    assert block.records["value"].to_pylist() == [b"1", b"2", b"3"]
    assert block.size_bytes == len(record.key) + len(DATA)


def test_a_block_names_the_principal_that_sent_it() -> None:
    record = encode_block(TARGET, 15, DATA, principal=2**64 - 1)
    assert decode_block(record.key, record.value).principal == 2**64 - 1
    older = encode_block(TARGET, 15, DATA)
    assert decode_block(older.key, older.value).principal == 0
    assert (
        older.key
        == fmt.BlockHeader(version=1, topic_id=2**64 - 1, partition=2**32 - 1, floor_us=15).SerializeToString()
    )


def test_a_block_of_a_range_names_its_ids() -> None:
    record = encode_block(TARGET, 0, DATA, IDS.take(pa.array([0, 1, 2])))
    ids = decode_block(record.key, record.value).ids
    assert ids is not None
    assert (ids.offsets.to_pylist(), ids.rows.to_pylist()) == (IDS.offsets.to_pylist(), IDS.rows.to_pylist())


def test_ids_that_are_a_slice_are_encoded_as_they_are() -> None:
    sliced = Ids(
        pa.concat_arrays([IDS.offsets, IDS.offsets]).slice(2, 3), pa.concat_arrays([IDS.rows, IDS.rows]).slice(2, 3)
    )
    record = encode_block(TARGET, 0, DATA, sliced)
    ids = decode_block(record.key, record.value).ids
    assert ids is not None
    assert (ids.offsets.to_pylist(), ids.rows.to_pylist()) == ([2**63 - 2, 7, 9], [1, 0, 2**32 - 2])


@pytest.mark.parametrize("count", [3, 40])
def test_no_row_is_due_before_the_floor(count: int) -> None:
    data = encode_batch(batch_of(range(count), [None, -7, *range(2, count)]))
    record = encode_block(TARGET, 5, data)
    block = decode_block(record.key, record.value)
    assert effective_dues(block).to_pylist() == [max(5, due) for due in range(count)]
    assert lowest_due_us(block) == 5


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (fmt.BlockHeader(topic_id=7), DATA),
        (HEADER, None),
        (HEADER, b""),
        (HEADER, DATA[:-8]),
        (HEADER, encode_batch(batch_of([1], [1 << 60]))),
        (fmt.BlockHeader(version=1, floor_us=-1), DATA),
        (fmt.BlockHeader(version=1, floor_us=1 << 62), DATA),
        (fmt.BlockHeader(version=1, id_offsets=bytes(24)), DATA),
        (fmt.BlockHeader(version=1, id_rows=bytes(12)), DATA),
        (fmt.BlockHeader(version=1, id_offsets=bytes(16), id_rows=bytes(12)), DATA),
        (fmt.BlockHeader(version=1, id_offsets=bytes(23) + b"\xff", id_rows=bytes(12)), DATA),
    ],
)
def test_a_damaged_block_is_refused(header: fmt.BlockHeader, value: bytes | None) -> None:
    with pytest.raises(DataDamaged):
        decode_block(header.SerializeToString(), value)


def test_a_block_of_a_later_version_is_refused() -> None:
    with pytest.raises(FormatNotSupported, match="version 2"):
        decode_block(fmt.BlockHeader(version=2).SerializeToString(), DATA)
    with pytest.raises(DataDamaged):
        decode_block(b"\xff", DATA)


@given(st.integers(0, 2**32))
def test_any_bytes_are_a_block_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    record = encode_block(TARGET, 5, DATA, IDS)
    key, value = record.key, record.value or b""
    if rng.random() < 0.6:
        key = mutate(rng, key, value)
    if rng.random() < 0.6:
        value = mutate(rng, value, key)
    try:
        block = decode_block(key, value)
    except (DataDamaged, FormatNotSupported):
        return
    assert block.ids is None or len(block.ids.offsets) == len(block.ids.rows) == block.records.num_rows
    again = encode_block(block.target, block.floor_us, value, block.ids)
    # a header may be spelled longer than it need be
    assert replace(decode_block(again.key, again.value), size_bytes=block.size_bytes) == block

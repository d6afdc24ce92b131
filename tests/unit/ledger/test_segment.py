"""Segments: golden bytes, round trip, damage."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.protocol.batches.records import decode_batch
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.segments.segment import (
    TAIL_GUESS_BYTES,
    TRAILER,
    decode_tail,
    encode_segment,
    first_batch_position,
    read_end,
    read_index,
)
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.stores.backends import seeded_sources
from tests.worlds.ledgers import batch, session

GOLDEN = Path(__file__).parents[2] / "golden" / "segment-v1.bin"
GOLDEN_WITH_MOVES = GOLDEN.with_name("segment-v2.bin")


def make_segment() -> tuple[fmt.SegmentIndex, bytes]:
    index = fmt.SegmentIndex(
        bundle=3,
        slot=9,
        epoch=2,
        kind=fmt.DATA,
        writer=b"w" * 16,
        put_id=b"p" * 16,
        previous=b"q" * 16,
        created_ms=1_700_000_000_000,
    )
    batches = [batch(b"one", b"two", timestamp_ms=5), batch(b"three", partition=4, producer=session(0))]
    position = first_batch_position()
    for b in batches:
        index.batches.append(b.entry(base_offset=10, position=position))
        position += len(b.data)
    return index, b"".join(bytes(part) for part in encode_segment(index, [b.data for b in batches]))


def test_round_trip() -> None:
    index, data = make_segment()
    assert decode_tail(data, 3, 9).index == index


def test_any_arrow_reader_opens_a_segment() -> None:
    _, data = make_segment()
    assert pa.ipc.open_stream(data).read_all().column("value").to_pylist() == [b"one", b"two", b"three"]


def test_golden_segment_is_readable_for_ever() -> None:
    data = GOLDEN.read_bytes()
    index = decode_tail(data, 3, 9).index
    assert index == make_segment()[0]
    entry = index.batches[1]
    assert decode_batch(data[entry.position : entry.position + entry.length]).column("value").to_pylist() == [b"three"]


def make_segment_with_moves() -> tuple[fmt.SegmentIndex, bytes]:
    index = fmt.SegmentIndex(bundle=3, slot=9, epoch=2, kind=fmt.DATA, writer=b"w" * 16, put_id=b"p" * 16)
    sealed = index.seals.add(topic_id=7, partition=0, move=21, end=40, target=5, append_us=9)
    producer = sealed.producers.add(producer_id=b"i" * 16, topic_id=7, partition=0, epoch=1, last_slot=8)
    producer.batches.add(sequence=0, record_count=5, base_offset=35, slot=8)
    sealed.message_ids.add(topic_id=7, partition=0, base_offset=35, until_us=99, slot=8, ids=b"i" * 16)
    index.opens.add(topic_id=7, partition=1, move=20, start=890, source=4)
    return index, b"".join(bytes(part) for part in encode_segment(index, []))


def test_golden_segment_with_moves_is_readable_for_ever() -> None:
    index, data = make_segment_with_moves()
    assert data == GOLDEN_WITH_MOVES.read_bytes()
    assert decode_tail(data, 3, 9).index == index


def test_a_segment_has_the_version_that_its_index_needs() -> None:
    """A release that knows version 1 only refuses seals and opens, and reads everything else."""
    made = [data for _, data in (make_segment(), make_segment_with_moves())]
    versions = [TRAILER.unpack_from(data, len(data) - TRAILER.size)[3] for data in made]
    assert versions == [1, 2]
    hidden = bytearray(make_segment_with_moves()[1])
    hidden[-12] = 1
    with pytest.raises(DataDamaged, match="trailer does not match"):
        decode_tail(bytes(hidden), 3, 9)


async def test_an_index_longer_than_the_guess_takes_a_second_get() -> None:
    store = MemoryStore("long", seeded_sources())
    index, _ = make_segment()
    index.broker = "x" * TAIL_GUESS_BYTES
    one, two = (batch(b"one", b"two", timestamp_ms=5), batch(b"three", partition=4, producer=session(0)))
    await store.put_if_absent(keys.segment(3, 9), encode_segment(index, [one.data, two.data]))
    assert (await read_index(store, 3, 9)).index.broker == index.broker


async def test_the_read_of_an_index_brings_the_batches_before_it_as_far_as_it_reaches() -> None:
    store = MemoryStore("small", seeded_sources())
    large, small = batch(b"x" * TAIL_GUESS_BYTES), batch(b"three")
    index = fmt.SegmentIndex(bundle=3, slot=9)
    index.batches.append(large.entry(0, first_batch_position()))
    index.batches.append(small.entry(1, first_batch_position() + len(large.data)))
    await store.put_if_absent(keys.segment(3, 9), encode_segment(index, [large.data, small.data]))
    end = await read_end(store, 3, 9)
    assert [end.bytes_of(entry) for entry in end.slot.index.batches] == [None, bytes(small.data)]


async def test_a_small_segment_comes_whole_with_its_index() -> None:
    store = MemoryStore("small", seeded_sources())
    index, data = make_segment()
    await store.put_if_absent(keys.segment(3, 9), [data])
    end = await read_end(store, 3, 9)
    assert [end.bytes_of(entry) for entry in index.batches] == [
        data[entry.position : entry.position + entry.length] for entry in index.batches
    ]


@pytest.mark.parametrize("at", [-1, -8, -12, -20, -28, -40, -100])
def test_a_damaged_tail_is_an_error_that_names_the_object(at: int) -> None:
    _, data = make_segment()
    damaged = bytearray(data)
    damaged[at] ^= 0xFF
    with pytest.raises((DataDamaged, FormatNotSupported)) as caught:
        decode_tail(bytes(damaged), 3, 9)
    assert caught.value.object_key == keys.segment(3, 9)


@pytest.mark.parametrize("length", [0, 1, 27, 28, 100])
def test_a_truncated_segment_is_damaged(length: int) -> None:
    _, data = make_segment()
    with pytest.raises(DataDamaged):
        decode_tail(data[:length], 3, 9)


def test_a_segment_in_the_wrong_place_is_damaged() -> None:
    _, data = make_segment()
    with pytest.raises(DataDamaged, match="says bundle 3, slot 9"):
        decode_tail(data, 3, 10)

"""Which bytes stay at hand."""

from __future__ import annotations

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.segments.segment import (
    SegmentEnd,
    SlotIndex,
    encode_segment,
    first_batch_position,
    tail_length,
)
from ledgermq_ledger.view.held_bytes import RecentBytes
from ledgermq_ledger.view.partition_index import IndexedBatch, PartitionIndex
from tests.worlds.ledgers import batch


def an_end(slot: int, *values: bytes) -> SegmentEnd:
    """A segment that was read whole; its batches are of one record each and of equal length, one a
    partition.
    """
    index = fmt.SegmentIndex(slot=slot)
    batches = [batch(value, partition=partition) for partition, value in enumerate(values)]
    position = first_batch_position()
    for each in batches:
        index.batches.append(each.entry(slot, position))
        position += len(each.data)
    data = b"".join(bytes(part) for part in encode_segment(index, [each.data for each in batches]))
    return SegmentEnd(SlotIndex(index, tail_length(data, "")), data)


def places(end: SegmentEnd, partition: int = 0) -> PartitionIndex:
    entry = end.slot.index.batches[partition]
    return PartitionIndex(
        [IndexedBatch(entry.base_offset, 1, end.slot.index.slot, entry.position, entry.length, entry.crc, 0, 0)]
    )


def test_the_oldest_go_first_and_the_bound_holds() -> None:
    ends = [an_end(slot, b"%d" % slot) for slot in range(1, 5)]
    length = ends[0].slot.index.batches[0].length
    recent = RecentBytes(2 * length)
    for end in ends:
        recent.keep(end, end.slot.index.batches)
        assert recent.bytes_held == sum(len(data) for data in recent.batches.values()) <= recent.bytes_max
    assert [bool(places(end).among(recent.batches)) for end in ends] == [False, False, True, True]
    assert places(ends[3]).among(recent.batches) == {
        (4, first_batch_position()): ends[3].bytes_of(ends[3].slot.index.batches[0])
    }


def test_only_wanted_batches_take_room_and_nothing_does_where_there_is_none() -> None:
    end = an_end(7, b"a", b"b")
    recent = RecentBytes(1 << 20)
    recent.keep(end, end.slot.index.batches[1:])
    assert (places(end, 0).among(recent.batches), len(places(end, 1).among(recent.batches))) == ({}, 1)
    recent.clear()
    assert (places(end, 1).among(recent.batches), recent.bytes_held) == ({}, 0)
    nothing = RecentBytes(0)
    nothing.keep(end, end.slot.index.batches)
    assert not nothing.batches
    assert nothing.bytes_held == 0

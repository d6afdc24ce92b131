"""What is kept of segments that were read: never above its bound, and what is left goes before what
is used.
"""

import pytest

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.segments.indexes import SMALL_BYTES, SegmentIndexes
from ledgermq_ledger.log.segments.segment import SlotIndex


def an_index(slot: int) -> SlotIndex:
    return SlotIndex(fmt.SegmentIndex(slot=slot), tail_length=100)


def kept(indexes: SegmentIndexes, bundle: int) -> list[int]:
    return [slot for slot in range(10) if indexes.find(bundle, slot, "etag") is not None]


def fill(indexes: SegmentIndexes, bundle: int, slots: range) -> None:
    for slot in slots:
        indexes.keep(bundle, an_index(slot), "etag")


def test_a_full_cache_takes_nothing_more_from_bundles_in_use() -> None:
    indexes = SegmentIndexes(300)
    fill(indexes, 1, range(2))
    fill(indexes, 2, range(4))
    assert (kept(indexes, 1), kept(indexes, 2), indexes.bytes_held) == ([0, 1], [0], 300)


def test_bundles_that_were_left_make_room_the_first_one_first() -> None:
    indexes = SegmentIndexes(400)
    for bundle in (1, 2, 3):
        fill(indexes, bundle, range(1))
    indexes.leave(2)
    indexes.leave(1)
    fill(indexes, 4, range(2))
    assert [kept(indexes, bundle) for bundle in (1, 2, 3, 4)] == [[0], [], [0], [0, 1]]
    assert indexes.bytes_held == 400


def test_a_bundle_that_comes_back_finds_what_is_left_and_is_in_use_again() -> None:
    indexes = SegmentIndexes(200)
    fill(indexes, 1, range(1))
    indexes.leave(1)
    assert kept(indexes, 1) == [0]
    fill(indexes, 1, range(1, 2))
    fill(indexes, 2, range(1))
    assert (kept(indexes, 1), kept(indexes, 2)) == ([0, 1], [])


@pytest.mark.parametrize("tail_length", [SMALL_BYTES, SMALL_BYTES + 1])
def test_what_is_found_is_what_was_kept(tail_length: int) -> None:
    indexes = SegmentIndexes()
    index = SlotIndex(fmt.SegmentIndex(slot=3, put_id=b"put", broker="a"), tail_length)
    indexes.keep(1, index, "etag")
    assert indexes.find(1, 3, "etag") == indexes.find_put(1, 3, b"put") == index
    assert indexes.find_put(1, 3, b"another") is None
    assert list(indexes.held(1)) == [index]


def test_another_segment_in_the_slot_is_not_known() -> None:
    indexes = SegmentIndexes()
    fill(indexes, 1, range(1))
    assert indexes.find(1, 0, "another") is None

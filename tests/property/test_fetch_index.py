"""The fetch index against a plain list: what it holds it finds, and what it forgot it does not
pretend to have.
"""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.view.fetch_index import FetchIndex, far_indexes
from ledgermq_ledger.view.partition_index import IndexedBatch, PartitionIndex, indexed

KEYS = [(1, 0), (1, 1), (2, 0)]

segments = st.lists(
    st.lists(st.tuples(st.integers(0, len(KEYS) - 1), st.integers(1, 5)), max_size=6), min_size=1, max_size=30
)


def build(shape: list[list[tuple[int, int]]]) -> list[fmt.SegmentIndex]:
    """Segments as a ledger would have them: dense offsets per partition, in slots 1, 2, …"""
    ends = dict.fromkeys(KEYS, 0)
    made = []
    for slot, batches in enumerate(shape, 1):
        index = fmt.SegmentIndex(bundle=1, slot=slot, created_ms=1000 + slot)
        position = 100
        for which, count in batches:
            topic_id, partition = KEYS[which]
            base = ends[PartitionId(topic_id, partition)]
            ends[PartitionId(topic_id, partition)] = base + count
            index.batches.add(
                topic_id=topic_id,
                partition=partition,
                base_offset=base,
                record_count=count,
                position=position,
                length=10 * count,
                crc=base,
                timestamp_min_us=base,
                timestamp_max_us=base + count,
            )
            position += 10 * count
        made.append(index)
    return made


def check(index: FetchIndex, made: list[fmt.SegmentIndex]) -> None:
    held = [(s.slot, e) for s in made if s.slot >= index.covered_from for e in s.batches]
    assert index.batches == len(held) == sum(len(p) for p in index.partitions.values())
    for key in KEYS:
        mine = [indexed(slot, e) for slot, e in held if (e.topic_id, e.partition) == key]
        assert sum(b.length for b in mine) == (index.partitions[key].size_bytes if mine else 0)
        end = max((b.end for b in mine), default=0)
        for offset in range(-1, end + 2):
            found = index.find(key, offset)
            expected = next((b for b in mine if b.base_offset <= offset < b.end), None)
            assert (found[0][found[1]] if found else None) == expected
        for parquet_end in range(end + 1):
            left = [b for b in mine if b.end > parquet_end]
            backlog = index.backlog(key, parquet_end)
            assert backlog == ((sum(b.length for b in left), 1000 + left[0].slot) if left else None)


@given(segments, st.integers(1, 40), st.integers(0, 35))
def test_appending_and_dropping(shape: list[list[tuple[int, int]]], batches_max: int, drop_below: int) -> None:
    made = build(shape)
    index = FetchIndex(batches_max, 1)
    for segment in made:
        index.add(segment)
    newest = max((len(s.batches) for s in made), default=0)
    assert index.batches <= max(batches_max, newest)
    check(index, made)
    index.drop_below(drop_below)
    check(index, made)


@given(segments, st.integers(1, 30), st.integers(1, 30), st.integers(20, 200))
def test_older_segments_go_in_front(
    shape: list[list[tuple[int, int]]], begin: int, older: int, batches_max: int
) -> None:
    made = build(shape)
    index = FetchIndex(batches_max, begin)
    for segment in made[begin - 1 :]:
        index.add(segment)
    index.prepend([s for s in made if s.slot >= older], older)
    check(index, made)
    if made and len(made) >= begin:
        last = made[-1]
        index.add(fmt.SegmentIndex(bundle=1, slot=last.slot + 1, created_ms=1))
        check(index, made)


@given(segments, st.integers(0, 60), st.integers(0, 10))
def test_times_find_the_first_batch_that_may_hold_them(
    shape: list[list[tuple[int, int]]], timestamp_us: int, from_place: int
) -> None:
    made = build(shape)
    index = FetchIndex(1000, 1)
    for segment in made:
        index.add(segment)
    assert set(index.partitions) == {PartitionId(e.topic_id, e.partition) for s in made for e in s.batches}
    for key in index.partitions:
        partition = index.partitions[key]
        expected = next(
            (i for i in range(from_place, len(partition)) if partition[i].timestamp_max_us >= timestamp_us), None
        )
        assert partition.first_at_or_after(timestamp_us, from_place) == expected


@given(st.lists(st.integers(1, 5), max_size=12), st.integers(0, 70), st.integers(0, 70), st.integers(0, 60))
def test_a_part_of_a_partition_is_what_holds_its_offsets(counts: list[int], first: int, end: int, middle: int) -> None:
    """In two halves, and put together again, it is the same; a pickle is a copy."""
    batches, at = [], 0
    for slot, count in enumerate(counts):
        batches.append(IndexedBatch(at, count, slot, 100 * slot, 10 * count, slot, 0, 0))
        at += count
    index = PartitionIndex(batches)
    part = pickle.loads(pickle.dumps(index.between(first, end)))
    wanted = [batch for batch in batches if batch.end > first and batch.base_offset < end]
    assert [part[place] for place in range(len(part))] == wanted
    assert part.size_bytes == sum(batch.length for batch in wanted)
    border = next((batch.end for batch in batches if batch.end > middle), at)
    joined = index.between(0, border)
    joined.extend(index.between(border, at + 1))
    assert [joined[place] for place in range(len(joined))] == batches
    assert joined.size_bytes == index.size_bytes


@given(st.integers(1, 7), st.booleans())
def test_what_a_partition_had_before_it_left_is_forgotten_when_it_comes_back(begin: int, by_lookup: bool) -> None:
    """Offsets 0 to 3 are of the first stay, 4 to 8 went to the other ledger, 9 to 11 are of the second stay."""
    key = PartitionId(*KEYS[0])
    made = build([[(0, 4)], [(1, 2)], [], [(0, 5)], [(0, 2)], [(0, 1), (1, 1)]])
    made[2].seals.add(topic_id=key.topic_id, partition=key.partition, move=1, end=4)
    del made[3].batches[:]
    made[3].opens.add(topic_id=key.topic_id, partition=key.partition, move=2, start=9)
    index = FetchIndex(100, begin)
    for segment in made[begin - 1 :]:
        index.add(segment)
    index.prepend(made, 1)
    found = far_indexes(made, {key: (9, 12)}, 0)[key] if by_lookup else index.partitions[key]
    assert [found[place].base_offset for place in range(len(found))] == [9, 11]
    assert index.batches == 4 == sum(len(part) for part in index.partitions.values())
    assert index.find(key, 3) is None

"""How ranges are dealt out to tasks: by size, by number of batches, and so that no task is too many
places long.
"""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.view.partition_index import IndexedBatch, PartitionIndex
from ledgermq_ledger.view.ranges.range_read import OffsetRange
from ledgermq_spark.source.ranges import planning
from ledgermq_spark.source.ranges.planning import TopicRange, deal

MB = 1024 * 1024


def in_segments(count: int, partition: int = 0) -> TopicRange:
    """A million batches of one record are as a thousand, for the code."""
    batches = PartitionIndex(
        IndexedBatch(offset, 1, offset // 1000, 500 * (offset % 1000), 500, 7, 0, 0) for offset in range(count)
    )
    return TopicRange("t", OffsetRange(1, (5, partition), 0, count, batches.size_bytes, batches))


def offsets(tasks: list[list[TopicRange]]) -> list[int]:
    return [offset for task in tasks for part in task for offset in range(part.range.first, part.range.end)]


def places(tasks: list[list[TopicRange]]) -> list[tuple[PartitionId, int]]:
    return sorted(
        (part.range.key, offset)
        for task in tasks
        for part in task
        for offset in range(part.range.first, part.range.end)
    )


def test_tiny_batches_are_spread_over_tasks_and_travel_in_few_bytes() -> None:
    tasks = deal([in_segments(120_000)], 1)
    assert offsets(tasks) == list(range(120_000))
    assert max(len(part.range.batches) for task in tasks for part in task) <= planning.TASK_BATCHES
    assert sum(len(pickle.dumps(task)) for task in tasks) < 120_000 * 64


def test_tasks_have_a_size() -> None:
    files = [TopicRange("t", OffsetRange(1, (5, 0), at * 10, at * 10 + 10, 100 * MB)) for at in range(4)]
    small = [TopicRange("u", OffsetRange(1, (6, at), 0, 10, MB)) for at in range(20)]
    tasks = deal([*files, *small], 1)
    assert offsets(tasks) == offsets([[*files, *small]])
    assert [sum(part.range.bytes for part in task) // MB for task in tasks] == [100, 100, 100, 120]
    assert len(deal([*files, *small], 1, 10 * MB)) == 6


def of_sizes(sizes: list[int], partition: int = 0) -> TopicRange:
    """In segments: a batch of ten records of each size."""
    batches = PartitionIndex(IndexedBatch(10 * at, 10, at, 0, size, 7, 0, 0) for at, size in enumerate(sizes))
    return TopicRange("t", OffsetRange(1, (5, partition), 0, 10 * len(sizes), batches.size_bytes, batches))


def in_a_file(size: int, partition: int = 0) -> TopicRange:
    return TopicRange("t", OffsetRange(1, (5, partition), 0, 1000, size))


def sizes_mb(tasks: list[list[TopicRange]]) -> list[int]:
    return [sum(part.range.bytes for part in task) // MB for task in tasks]


def test_ranges_in_segments_are_cut_by_bytes() -> None:
    hot = of_sizes([MB] * 20_480)
    tasks = deal([hot], 1)
    assert sizes_mb(tasks) == [128] * 160
    assert offsets(tasks) == offsets([[hot]])
    assert sizes_mb(deal([of_sizes([MB] * 100)], 1, 32 * MB)) == [32, 32, 32, 4]
    assert sizes_mb(deal([of_sizes([200 * MB, MB, 200 * MB])], 1)) == [200, 1, 200], "a batch is read as a whole"


@pytest.mark.parametrize("hot", [of_sizes([MB] * 100), in_a_file(100 * MB)], ids=["segments", "file"])
def test_a_hot_partition_and_many_small_ones_make_about_as_many_tasks_as_asked_for(hot: TopicRange) -> None:
    ranges = [hot, *(of_sizes([10 * 1024], partition) for partition in range(1, 1001))]
    tasks = deal(ranges, 16)
    assert 16 <= len(tasks) <= 20
    assert offsets(tasks) == offsets([ranges])
    if hot.range.batches:
        assert max(sizes_mb(tasks)) <= 7


def test_what_was_cleaned_is_a_task_and_what_lies_around_it_goes_together() -> None:
    """Its size is unknown: it may be all that there is of a keyed topic."""
    cleaned = [TopicRange("t", OffsetRange(1, (5, partition), 0, 1000)) for partition in range(64)]
    tails = [of_sizes([MB], partition) for partition in range(64)]
    ranges = [each for pair in zip(cleaned, tails, strict=True) for each in pair]
    for tasks_min in (1, 16, 65):
        tasks = deal(ranges, tasks_min)
        assert [task for task in tasks if not task[0].range.bytes] == [[each] for each in cleaned]
        assert sizes_mb([task for task in tasks if task[0].range.bytes]) == [64]
    tasks = deal(ranges, 200)
    assert len(tasks) == 200
    assert places(tasks) == places([ranges])


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 1000, MB]), max_size=5), max_size=5),
    st.lists(st.sampled_from([0, 1, 30 * MB]), max_size=5),
    st.integers(1, 40),
    st.sampled_from([1, 1000, MB, 128 * MB]),
)
def test_no_offset_is_left_out_or_dealt_twice(
    segments: list[list[int]], files: list[int], tasks_min: int, task_bytes: int
) -> None:
    ranges = [of_sizes(sizes, at) for at, sizes in enumerate(segments)] + [
        in_a_file(size, 10 + at) for at, size in enumerate(files)
    ]
    ranges = [each for each in ranges if each.range.first < each.range.end]
    tasks = deal(ranges, tasks_min, task_bytes)
    assert places(tasks) == places([ranges])
    assert all(tasks)
    assert len(tasks) >= min(tasks_min, len(offsets(tasks)))
    for task in tasks:
        assert len(task) == 1 or sum(part.range.bytes for part in task) <= task_bytes


def test_a_task_carries_no_more_bytes_than_a_bound() -> None:
    """Each range has a quarter of the bound at hand: the first four keep it, the others are read
    from the store.
    """
    ranges = [in_segments(10, partition) for partition in range(6)]
    quarter = bytes(planning.AT_HAND_BYTES_MAX // 4)
    carrying = [TopicRange("t", replace(each.range, at_hand={(0, 0): quarter})) for each in ranges]
    [task] = deal(carrying, 1)
    assert [bool(part.range.at_hand) for part in task] == [True] * 4 + [False] * 2
    assert offsets([task]) == offsets([ranges])

"""How ranges are dealt out to tasks: by size, by number of batches, and so that no task is too many places long."""

from __future__ import annotations

import pickle
from dataclasses import replace

from ledger.fetch_index import IndexedBatch, PartitionIndex
from ledger.range_read import OffsetRange
from spark.source import planning
from spark.source.planning import TopicRange, deal

MB = 1024 * 1024


def in_segments(count: int, partition: int = 0) -> TopicRange:
    """A million batches of one record are as a thousand, for the code."""
    batches = PartitionIndex(IndexedBatch(offset, 1, offset // 1000, 500 * (offset % 1000), 500, 7, 0, 0) for offset in range(count))
    return TopicRange("t", OffsetRange(1, (5, partition), 0, count, batches.size_bytes, batches))


def offsets(tasks: list[list[TopicRange]]) -> list[int]:
    return [offset for task in tasks for part in task for offset in range(part.range.first, part.range.end)]


def test_tiny_batches_are_spread_over_tasks_and_travel_in_few_bytes() -> None:
    tasks = deal([in_segments(120_000)], 1)
    assert offsets(tasks) == list(range(120_000))
    assert max(len(part.range.batches) for task in tasks for part in task) <= planning.TASK_BATCHES
    assert sum(len(pickle.dumps(task)) for task in tasks) < 120_000 * 60


def test_tasks_have_a_size() -> None:
    files = [TopicRange("t", OffsetRange(1, (5, 0), at * 10, at * 10 + 10, 100 * MB)) for at in range(4)]
    small = [TopicRange("u", OffsetRange(1, (6, at), 0, 10, MB)) for at in range(20)]
    tasks = deal([*files, *small], 1)
    assert offsets(tasks) == offsets([[*files, *small]])
    assert [sum(part.range.bytes for part in task) // MB for task in tasks] == [100, 100, 100, 120]
    assert len(deal([*files, *small], 1, 10 * MB)) == 6


def test_a_task_carries_no_more_bytes_than_a_bound() -> None:
    """Each range has a quarter of the bound at hand: the first four keep it, the others are read from the store."""
    ranges = [in_segments(10, partition) for partition in range(6)]
    quarter = bytes(planning.AT_HAND_BYTES_MAX // 4)
    carrying = [TopicRange("t", replace(each.range, at_hand={(0, 0): quarter})) for each in ranges]
    [task] = deal(carrying, 1)
    assert [bool(part.range.at_hand) for part in task] == [True] * 4 + [False] * 2
    assert offsets([task]) == offsets([ranges])

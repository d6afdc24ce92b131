"""Choose what a merge takes: a run of small neighbours of one partition. Pure.

A run has `parquet.merge.files` files, or as many as make `parquet.target.bytes`. It begins at or above the log start,
so that it lives for long, and at the lowest offset where there is one. Files in the range of a merged one that is not
deleted, files of the target size, and files with typed values break a run; so does a change between files with and
without the column `appended`. Which files make a run never depends on those behind it, so rivals mostly choose the
same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import is_in_charge
from ledgermq_ledger.parquet.merging.merged_list import listed_at
from ledgermq_ledger.topics.settings import ICEBERG, TopicSettings
from ledgermq_ledger.topics.topic import Topic

MERGED_FILES_MAX = 10_000
"""Files of one list, which is one object."""


def wants_merges(topic: Topic | None) -> bool:
    """Return whether the files of a topic are to be merged."""
    return (
        topic is not None
        and topic.living
        and not topic.internal
        and not topic.settings.keyed
        and bool(topic.settings.parquet_merge_files)
    )


def has_delta_table(topic: Topic) -> bool:
    """Return whether a Delta table is over the files of a topic's log: it may name merged files, too."""
    settings = topic.settings
    return bool(settings.table_generation) and settings.table_format != ICEBERG and not settings.keyed


def may_list(checkpoint: fmt.Checkpoint, counters: fmt.PartitionCheckpoint) -> bool:
    """Return whether a checkpoint of this bundle may name merged files of a partition: the bundle is in charge of it,
    its list is not frozen, and the topic is not removed.
    """
    is_free = not counters.frozen and not counters.forgotten
    is_free = is_free and all(note.topic_id != counters.topic_id for note in checkpoint.removed_topics)
    return is_free and is_in_charge(checkpoint, counters.topic_id, counters.partition)


class Run(NamedTuple):
    """Small neighbours. `is_due`: they are to be merged; else more files may complete the run."""

    files: list[fmt.ParquetFile]
    is_due: bool

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def choose_run(
    files: Sequence[fmt.ParquetFile],
    merged: Sequence[fmt.ParquetFile],
    counters: fmt.PartitionCheckpoint,
    settings: TopicSettings,
) -> Run:
    """Return the next run to merge; where none is due, the last one, to which files may come. `files`: the small ones
    of the partition, ascending. `merged`: its list.
    """
    there = [file for file in merged if file.first_offset >= counters.merged.first]
    if len(there) >= MERGED_FILES_MAX:
        return Run([], False)
    run: list[fmt.ParquetFile] = []
    size = 0
    for file in files:
        is_large = file.size >= settings.parquet_target_bytes
        is_taken = listed_at(there, file.first_offset) is not None
        if is_large or is_taken or file.typed or file.first_offset < counters.log_start:
            run, size = [], 0
            continue
        if run and bool(run[-1].appended_max_us) != bool(file.appended_max_us):
            run, size = [], 0
        if run and size + file.size > settings.parquet_target_bytes:
            if len(run) > 1:
                return Run(run, True)
            run, size = [], 0
        run.append(file)
        size += file.size
        if len(run) == settings.parquet_merge_files:
            return Run(run, True)
    return Run(run, False)


def with_file(
    merged: Sequence[fmt.ParquetFile], new: fmt.ParquetFile, counters: fmt.PartitionCheckpoint
) -> list[fmt.ParquetFile]:
    """Return the next list: what is not deleted, behind the front or not, and the new file."""
    there = [file for file in merged if file.first_offset >= counters.merged.first]
    return sorted([*there, new], key=lambda file: file.first_offset)

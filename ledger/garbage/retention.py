"""Retention: where a partition's log should start, by the age and the bytes of its Parquet files.
Deletes nothing.

Whole files only, and never beyond the end of Parquet: what is still in segments is kept until it is
in Parquet. Age is judged by the newest record timestamp of a file, as in Kafka; a file in which no
record has one is as old as its plan. A topic with `delete.when` is judged as of the last of its
times, by the files that there were then; a time before the topic was altered counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.format import ledgermq_format_pb2 as fmt
from ledger.keys import PartitionId
from ledger.object_store.contract import ObjectMissing
from ledger.parquet.pages import PageReader
from ledger.topics.catalog import Catalog
from ledger.topics.deletion_times import last_time_ms
from ledger.topics.facts import may_remove
from ledger.topics.settings import TopicSettings
from ledgermq.errors import StoreError


def log_start_by_retention(
    files: Sequence[fmt.ParquetFile], settings: TopicSettings, now_ms: int, altered_ms: int = 0
) -> int:
    """The first offset to keep; 0 where everything is kept.

    `files`: the live files of the partition, ascending. Pure.
    """
    start = 0
    if settings.delete_when:
        now_ms = last_time_ms(settings.delete_when, settings.delete_when_timezone, now_ms)
        if now_ms <= altered_ms:
            return 0
        files = [file for file in files if file.committed_ms <= now_ms]
    kept_bytes = sum(file.size for file in files)
    for file in files:
        written_ms = file.timestamp_max_us // 1000 or file.committed_ms
        is_old = settings.retention_ms >= 0 and written_ms < now_ms - settings.retention_ms
        is_too_much = settings.retention_bytes >= 0 and kept_bytes > settings.retention_bytes
        if not is_old and not is_too_much:
            break
        start = file.last_offset + 1
        kept_bytes -= file.size
    return start


async def new_log_starts(
    pages: PageReader, checkpoint: fmt.Checkpoint, catalog: Catalog, now_ms: int
) -> tuple[dict[PartitionId, int], StoreError | ObjectMissing | None]:
    """Partitions whose log start should move; and the first error, where file lists cannot be read:
    the others go on.

    Topics without retention settings cost no request. Raises what else the store answers.
    """
    starts: dict[PartitionId, int] = {}
    failed = None
    for part in checkpoint.partitions:
        topic = catalog.topics_by_id.get(part.topic_id)
        if (
            topic is None
            or topic.removed
            or topic.internal
            or not may_remove(checkpoint, topic)
            or not has_retention(topic.settings)
        ):
            continue
        if (
            part.log_start < part.parquet_start
            and not topic.settings.keyed
            and topic.settings.delete_action != "archive"
        ):
            continue  # versions hold what comes before the log: both are judged together (`ledger.garbage.left`)
        if part.parquet_start < part.parquet_end:
            try:
                files = await pages.files_from(part, max(part.log_start, part.parquet_start))
            except (StoreError, ObjectMissing) as error:
                failed = failed or error
                continue
            start = log_start_by_retention(files, topic.settings, now_ms, max(topic.created_ms, topic.altered_ms))
            if start > part.log_start:
                starts[PartitionId(part.topic_id, part.partition)] = start
    return starts, failed


def has_retention(settings: TopicSettings) -> bool:
    return "delete" in settings.cleanup_policy.split(",") and (
        settings.retention_ms >= 0 or settings.retention_bytes >= 0
    )

"""Apply retention: decide which records expire, and where a partition's log starts as a result
(design D1). This moves log starts and deletes nothing: `expired_files` removes the files below a
log start.

Only whole files expire, and never beyond the end of Parquet: records in segments are kept until
they are in Parquet. Age is judged by the newest record timestamp of a file, as in Kafka, but no file is younger
than its newest append (`ledgermq_ledger.parquet.pages`). A topic with `delete.when` is judged as of the last
of its times, by the files that existed then; a time before the topic was altered does not count.

Nothing expires of a topic under legal hold, nor by settings that were replaced, as the bundle's
newest checkpoint says. A log start never goes back, so both clocks have to agree (decision 30).

Versions of a topic that is no longer keyed hold the records before its log: both are judged
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ledgermq.errors import LedgerMQError, StoreError, UnknownTopic
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keyed.version import Published, newest_version
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import (
    Move,
    newest_checkpoint,
    partition_of,
    partitions_by_key,
    replace_partitions,
)
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import advance_checkpoint, bring_into_force
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.pages import PageReader, dated, written_ms
from ledgermq_ledger.root.two_clocks import TwoClocks
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.deletion_times import last_time_ms
from ledgermq_ledger.topics.facts import is_held, may_remove, refuse_held, refuse_moving
from ledgermq_ledger.topics.removal import note_of
from ledgermq_ledger.topics.settings import TopicSettings
from ledgermq_ledger.topics.topic import Topic


def log_start_by_retention(
    files: Sequence[fmt.ParquetFile], settings: TopicSettings, now_ms: int, altered_ms: int = 0
) -> int:
    """Return the first offset to keep; 0 if everything is kept.

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
        is_old = settings.retention_ms >= 0 and written_ms(file) < now_ms - settings.retention_ms
        is_too_much = settings.retention_bytes >= 0 and kept_bytes > settings.retention_bytes
        if not is_old and not is_too_much:
            break
        start = file.last_offset + 1
        kept_bytes -= file.size
    return start


async def new_log_starts(
    store: ObjectStore, pages: PageReader, checkpoint: fmt.Checkpoint, catalog: Catalog, now_ms: int
) -> tuple[dict[PartitionId, int], StoreError | ObjectMissing | None]:
    """Return the partitions whose log start should move, and the first error if file lists cannot
    be read: the others continue.

    Topics without retention settings cost no request. Raises the store's other errors.
    """
    starts: dict[PartitionId, int] = {}
    failed = None
    for part in checkpoint.partitions:
        topic = catalog.topics_by_id.get(part.topic_id)
        if (
            topic is None
            or topic.removed
            or topic.internal
            or not may_remove(checkpoint, topic, part.partition)
            or not has_retention(topic.settings)
        ):
            continue
        if (
            part.log_start < part.parquet_start
            and not topic.settings.keyed
            and topic.settings.delete_action != "archive"
        ):
            continue  # versions hold what comes before the log: both are judged together
        if part.parquet_start < part.parquet_end:
            try:
                files = await pages.files_from(part, max(part.log_start, part.parquet_start))
                files = await _dated(store, files, topic.settings, now_ms)
            except (StoreError, ObjectMissing) as error:
                failed = failed or error
                continue
            start = log_start_by_retention(files, topic.settings, now_ms, max(topic.created_ms, topic.altered_ms))
            if start > part.log_start:
                starts[PartitionId(part.topic_id, part.partition)] = start
    return starts, failed


async def _dated(
    store: ObjectStore, files: list[fmt.ParquetFile], settings: TopicSettings, now_ms: int
) -> list[fmt.ParquetFile]:
    return await dated(store, files, now_ms - settings.retention_ms) if settings.retention_ms >= 0 else files


def has_retention(settings: TopicSettings) -> bool:
    return "delete" in settings.cleanup_policy.split(",") and (
        settings.retention_ms >= 0 or settings.retention_bytes >= 0
    )


async def apply(ledger: LedgerRef, catalog: Catalog) -> None:
    """Move log starts by the retention settings of topics, judged by both clocks because a log
    start never goes back.

    Partitions whose file list cannot be read stay unchanged, and the others continue; then the
    first error is raised.
    """
    store = ledger.store
    checkpoint = await newest_checkpoint(store, ledger.bundle)
    pages = PageReader(store, ledger.bundle)
    failed: StoreError | ObjectMissing | None = None

    async def starts_by(now_ms: int) -> dict[PartitionId, int]:
        nonlocal failed
        found, failed = await new_log_starts(store, pages, checkpoint, catalog, now_ms)
        return found

    starts = await TwoClocks(store, ledger.sources).due(starts_by)
    if failed is not None and await is_replaced(store, checkpoint, failed):
        failed = None
    if starts:
        await advance_checkpoint(ledger, log_start_move(starts, catalog))
    if failed is not None:
        raise failed


async def is_replaced(store: ObjectStore, checkpoint: fmt.Checkpoint, error: LedgerMQError) -> bool:
    """Return True if an object is missing because another process does the same: the file list that
    was read is no longer in force.
    """
    return (
        isinstance(error, ObjectMissing)
        and (await newest_checkpoint(store, checkpoint.bundle)).number != checkpoint.number
    )


async def apply_to_stale_versions(ledger: LedgerRef, catalog: Catalog, topic: Topic, partition: int) -> None:
    """Move the log start of a partition whose stale versions hold records that are too old or too
    many, which `apply` skips. Topics that archive are left out: versions are never archived.

    Raises DataDamaged, Unavailable, the store's errors.
    """
    if not has_retention(topic.settings) or topic.settings.delete_action == "archive":
        return
    store, bundle, place = ledger.store, ledger.bundle, PartitionId(topic.id, partition)
    checkpoint = await newest_checkpoint(store, bundle)
    part = partition_of(checkpoint, topic.id, partition)
    published = await newest_version(store, place)
    if published is None or part.log_start >= part.parquet_start or not may_remove(checkpoint, topic, partition):
        return
    since_ms = max(topic.created_ms, topic.altered_ms)
    files = _files_below(part, published, since_ms) + await PageReader(store, bundle).files_from(
        part, part.parquet_start
    )

    async def start_by(now_ms: int) -> int:
        judged = await _dated(store, files, topic.settings, now_ms)
        found = log_start_by_retention(judged, topic.settings, now_ms, since_ms)
        return found if found > part.log_start else 0

    start = await TwoClocks(store, ledger.sources).due(start_by)
    if start:
        move = log_start_move({PartitionId(topic.id, partition): start}, catalog)
        await advance_checkpoint(ledger, move)


def _files_below(part: fmt.PartitionCheckpoint, published: Published, altered_ms: int) -> list[fmt.ParquetFile]:
    """Return the version's files as if they were of the log, as far as the log begins above them,
    with their share of the bytes.

    Versions since the topic was altered bring nothing new: their records were in Parquet before.
    """
    return [
        fmt.ParquetFile(
            key=file.key,
            first_offset=file.first,
            last_offset=min(file.last, part.parquet_start - 1),
            size=file.size * (min(file.last + 1, part.parquet_start) - file.first) // (file.last + 1 - file.first),
            timestamp_max_us=file.timestamp_max_us,
            committed_ms=min(published.published_ms, altered_ms),
        )
        for file in published.version.files
        if part.log_start <= file.last and file.first < part.parquet_start
    ]


def log_start_move(starts: Mapping[PartitionId, int], catalog: Catalog | None = None) -> Move:
    """Return the move that raises the log start of partitions of live topics that are not held; it
    declines if none would move.

    `catalog`: the one whose settings said so; if the draft knows newer ones of a topic, its log
    stays. A start above the partition's end is a bug.
    """

    def move(draft: fmt.Checkpoint) -> bool:
        parts = partitions_by_key(draft)
        ends = {PartitionId(end.topic_id, end.partition): end.end for end in draft.state.ends}
        moved = False
        removed = {topic.topic_id for topic in draft.removed_topics}
        for key, start in starts.items():
            if key.topic_id in removed or is_held(draft, key.topic_id):
                continue
            if catalog is not None and not may_remove(draft, catalog.topics_by_id[key.topic_id], key.partition):
                continue
            if start > ends.get(key, 0):
                raise AssertionError(
                    f"bundle {draft.bundle}: the log of {key} would start at {start}, but it ends at {ends.get(key, 0)}"
                )
            part = parts.setdefault(key, fmt.PartitionCheckpoint(topic_id=key.topic_id, partition=key.partition))
            if start > part.log_start:
                part.log_start = start
                moved = True
        replace_partitions(draft, parts.values())
        return moved

    return move


async def move_internal_log_starts(
    ledger: LedgerRef, starts: Mapping[PartitionId, int], durable: LedgerState | None = None
) -> bool:
    """Raise the log starts of staged and hidden partitions in one checkpoint: their owner needs
    nothing below these offsets any longer, so rounds may drop it. A log start never goes back.
    Return False if all logs start there or later already.

    `durable`: the owner's fold. Raises Unavailable, the store's errors; a repeated call is
    harmless.
    """
    return await bring_into_force(ledger, log_start_move(starts), durable)


def deletion_move(topic: Topic, befores: Mapping[int, int]) -> Move:
    """Return the move that deletes records below these offsets on demand, without an archive; it
    declines if no log start would move.

    Raises LegalHold, UnknownTopic (it was removed meanwhile), Unavailable (one of the partitions is
    between two bundles) when it is applied.
    """
    raise_log_starts = log_start_move(
        {PartitionId(topic.id, partition): before for partition, before in befores.items()}
    )

    def move(draft: fmt.Checkpoint) -> bool:
        refuse_held(draft, topic)
        refuse_moving(draft, topic, befores)
        if note_of(draft, topic.id) is not None:
            raise UnknownTopic(f"topic {topic.name!r} is being deleted")
        old = {key: part.log_start for key, part in partitions_by_key(draft).items()}
        if not raise_log_starts(draft):
            return False
        for key, part in partitions_by_key(draft).items():
            if part.log_start > old.get(key, 0):
                part.deleted_to = part.log_start
        return True

    return move

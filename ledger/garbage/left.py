"""Partitions of topics that were keyed once and are no more: their versions hold what the log no
longer does, and is read from there.

Retention takes of them as of a log, by whole files. What is below the log start leaves the versions
by rounds that clean nothing else (`ledger.keyed.plan`), so the chain of versions goes on: an empty
one stays in the end, for a number that is free again could be put late.
"""

from __future__ import annotations

from ledger import keys
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.garbage.delete import log_start_move
from ledger.garbage.retention import has_retention, log_start_by_retention
from ledger.keyed.version import Published, newest_version
from ledger.keys import PartitionId
from ledger.log.checkpoint import newest_checkpoint, partition_of
from ledger.log.recovery import advance_checkpoint
from ledger.object_store.contract import ObjectStore
from ledger.parquet.compaction import Compaction
from ledger.parquet.pages import PageReader
from ledger.root.two_clocks import TwoClocks
from ledger.topics.catalog import Catalog, Topic
from ledger.topics.facts import may_remove


async def left_partitions(compaction: Compaction, catalog: Catalog, bundle: int) -> list[tuple[Topic, int]]:
    """In the bundle, of living topics: those of which more than the last, empty version may be
    there below `keyed/`.

    A topic that was never altered was never keyed: it is not asked for, nor is a partition again
    that was found to be settled.
    """
    compaction.settled.forget_removed(catalog)
    topics = [topic for topic in catalog.living_topics() if bundle in topic.bundles and may_have_been_keyed(topic)]
    found = []
    for topic in sorted(topics, key=lambda topic: topic.id):
        for partition, its_bundle in enumerate(topic.bundles):
            if its_bundle != bundle or (topic, partition) in compaction.settled:
                continue
            if await _is_left(compaction.store, PartitionId(topic.id, partition)):
                found.append((topic, partition))
            elif (
                compaction.sources.now_ms() - topic.altered_ms >= compaction.cluster.parquet_min_age_ms
            ):  # rounds of before have ended
                compaction.settled.add(topic, partition)
    return found


async def _is_left(store: ObjectStore, place: PartitionId) -> bool:
    """A file, or a second version. One LIST, however many there are."""
    versions = 0
    async for info in store.list(keys.keyed_folder(place)):
        name = keys.parse_keyed(info.key)
        if name is None:
            continue
        versions += 1
        if name.is_file or versions > 1:
            return True
    return False


def may_have_been_keyed(topic: Topic) -> bool:
    """It is not now."""
    return not topic.settings.keyed and not topic.internal and topic.version != topic.id


async def apply_retention_to_left(compaction: Compaction, catalog: Catalog, topic: Topic, partition: int) -> None:
    """Move the log start where what its versions hold is too old or too much:
    `ledger.garbage.retention` sees no more than the log.

    By both clocks: a log start never goes back.
    Not where the topic archives: versions go to no archive.
    Raises DataDamaged, Unavailable, the store's errors.
    """
    if not has_retention(topic.settings) or topic.settings.delete_action == "archive":
        return
    store, bundle, place = compaction.store, topic.bundles[partition], PartitionId(topic.id, partition)
    checkpoint = await newest_checkpoint(store, bundle)
    part = partition_of(checkpoint, topic.id, partition)
    published = await newest_version(store, place)
    if published is None or part.log_start >= part.parquet_start or not may_remove(checkpoint, topic):
        return
    since_ms = max(topic.created_ms, topic.altered_ms)
    files = _files_below(part, published, since_ms) + await PageReader(store, bundle).files_from(
        part, part.parquet_start
    )

    async def start_by(now_ms: int) -> int:
        found = log_start_by_retention(files, topic.settings, now_ms, since_ms)
        return found if found > part.log_start else 0

    start = await TwoClocks(store, compaction.sources).due(start_by)
    if start:
        move = log_start_move({PartitionId(topic.id, partition): start}, catalog)
        await advance_checkpoint(compaction.ledger(bundle), move)


def _files_below(part: fmt.PartitionCheckpoint, published: Published, altered_ms: int) -> list[fmt.ParquetFile]:
    """The version's files as if they were of the log, as far as the log begins above them: with
    their share of the bytes.

    Versions since the topic was altered bring nothing new: what this one holds was in Parquet
    before.
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

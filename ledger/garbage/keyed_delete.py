"""Deletes what versions have replaced, and exactly that (docs/decisions/0022; safety invariant 9).

the log       of a topic that is keyed now: files that end below the end of a version that is `parquet_min_age` old: first a checkpoint
              moves `parquet_start` above them, then all below it go, in ascending order, each before the next. What a crash leaves is
              found by `ledger.garbage.gc`
versions      below the newest, when the one after them is `parquet_min_age` old, in ascending order
files         of numbers up to the newest version's that no version names: of replaced versions, and of rounds that lost
everything    of a partition whose topic was removed

Nothing of a topic that is under legal hold, and nothing by settings that were replaced, as its
bundle's newest checkpoint says, which is looked at just before versions and their files go: who
slept over a hold may have put a version that lacks what the one before it holds.
"""

from __future__ import annotations

from itertools import pairwise

from ledger import keys
from ledger.cluster import ClusterSettings
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.garbage.delete import close_finished_fences, finished_long_ago
from ledger.keyed.version import newest_version, read_version
from ledger.keys import PartitionId
from ledger.log.checkpoint import Move, newest_checkpoint, partition_of
from ledger.log.ledger_ref import LedgerRef
from ledger.log.numbered import list_numbered
from ledger.log.recovery import advance_checkpoint
from ledger.object_store.contract import ObjectInfo, ObjectMissing, ObjectStore
from ledger.parquet.pages import PageReader
from ledger.topics.catalog import Catalog, Topic
from ledger.topics.facts import may_remove


async def tidy_partition(ledger: LedgerRef, topic: Topic, partition: int) -> list[str]:
    """Everything that may go now; the keys.

    Safe to be cut off anywhere and to be run by several at once.
    """
    if not may_remove(await newest_checkpoint(ledger.store, ledger.bundle), topic):
        return []
    deleted = await delete_replaced(ledger.store, ledger.cluster, topic, partition)
    if topic.settings.keyed:
        deleted += await delete_cleaned_log(ledger, topic, PartitionId(topic.id, partition))
    return deleted


async def delete_replaced(store: ObjectStore, cluster: ClusterSettings, topic: Topic, partition: int) -> list[str]:
    """Old versions, then files that nothing names.

    The files are listed first: what is not there yet cannot be taken for garbage.
    """
    place = PartitionId(topic.id, partition)
    files = [
        (info.key, name.number)
        async for info in store.list(keys.keyed_files(place))
        if (name := keys.parse_keyed(info.key)) is not None
    ]
    listed = [found async for found in list_numbered(store, keys.keyed_versions(place))]
    if not listed:
        return []
    limit_ms = await store.store_time_ms() - cluster.parquet_min_age_ms
    replaced = [number for (number, _), (_, after) in pairwise(listed) if after.modified_ms <= limit_ms]
    live: set[str] = set()
    for number, _ in listed:
        if number not in replaced:
            live |= await _files_of(store, place, number)
    unused = [key for key, number in files if key not in live and number <= listed[-1][0]]
    deleted: list[str] = []
    for group in [*([keys.keyed_version(place, number)] for number in replaced), unused]:
        if group and not may_remove(await newest_checkpoint(store, topic.bundles[partition]), topic):
            break
        if group:
            await store.delete(group)
            deleted += group
    return deleted


async def _files_of(store: ObjectStore, place: PartitionId, number: int) -> set[str]:
    try:
        return {file.key for file in (await read_version(store, place, number)).files}
    except ObjectMissing:
        return set()  # another process has just deleted it, for it was replaced long ago


async def delete_cleaned_log(ledger: LedgerRef, topic: Topic, place: PartitionId) -> list[str]:
    """The log below what has been in a version for `parquet_min_age`, whole files."""
    store, bundle = ledger.store, ledger.bundle
    end = await _settled_end(store, ledger.cluster, place)
    checkpoint = await newest_checkpoint(store, bundle)
    counters = partition_of(checkpoint, place.topic_id, place.partition)
    if end <= counters.parquet_start:
        return []
    old_enough = await finished_long_ago(store, bundle, ledger.cluster.parquet_min_age_ms)
    files = [
        file
        for file in await PageReader(store, bundle).files_from(counters, counters.parquet_start)
        if file.last_offset < end and file.plan <= old_enough
    ]
    if not files:
        return []
    await close_finished_fences(store, bundle)
    move = parquet_start_move(topic, place.partition, files[-1].last_offset + 1)
    await advance_checkpoint(ledger, move)
    after = partition_of(await newest_checkpoint(store, bundle), place.topic_id, place.partition)
    if (
        after.parquet_start <= files[-1].last_offset
    ):  # it declined, or what was won is not the newest: its number was free again
        return []
    # Not only these: who moved the start before may still be at it, and a higher file must not go
    # before a lower one.
    return await _delete_below(store, topic, place, after.parquet_start, old_enough)


async def _delete_below(store: ObjectStore, topic: Topic, place: PartitionId, start: int, old_enough: int) -> list[str]:
    """Every file of the log that ends below `start`, in ascending order, each before the next, up
    to one that is too young.
    """
    listed = [
        keys.parse_parquet(info.key) async for info in store.list(keys.parquet_partition(topic.name, place.partition))
    ]
    deleted = []
    for name in listed:
        if name is None or name.topic_id != place.topic_id or name.last_offset >= start:
            continue
        if name.plan > old_enough:
            break
        await store.delete([name.key])
        deleted.append(name.key)
    return deleted


async def _settled_end(store: ObjectStore, cluster: ClusterSettings, place: PartitionId) -> int:
    """The end of the newest version of which plain readers have had `parquet_min_age` to hear;
    never above the newest version's.
    """
    newest = await newest_version(store, place)
    if newest is None:
        return 0
    limit_ms = await store.store_time_ms() - cluster.parquet_min_age_ms
    if newest.published_ms <= limit_ms:
        return newest.version.end
    aged = [end for end, published_ms in newest.version.earlier if published_ms <= limit_ms]
    return max(aged, default=0)


def parquet_start_move(topic: Topic, partition: int, start: int) -> Move:
    """A version holds what counts below `start`, so the log may begin there; declines for a topic
    that is removed, held or was altered.
    """

    def move(draft: fmt.Checkpoint) -> bool:
        if any(note.topic_id == topic.id for note in draft.removed_topics) or not may_remove(draft, topic):
            return False
        for part in draft.partitions:
            if (part.topic_id, part.partition) == (topic.id, partition) and part.parquet_start < start:
                if start > part.parquet_end:
                    raise AssertionError(
                        f"{topic.name}/{partition}: the log would begin at {start}, Parquet ends at {part.parquet_end}"
                    )
                part.parquet_start = start
                return True
        return False

    return move


async def delete_removed(store: ObjectStore, catalog: Catalog) -> list[str]:
    """Everything below `keyed/` of topics that `catalog`, as it was read just now, says were
    removed.
    """
    found = [info async for info in store.list(keys.KEYED)]
    gone = [info.key for info in found if _is_of_removed(info, catalog)]
    if gone:
        await store.delete(gone)
    return gone


def _is_of_removed(info: ObjectInfo, catalog: Catalog) -> bool:
    name = keys.parse_keyed(info.key)
    return name is not None and catalog.is_removed(name.place.topic_id, catalog.offset)

"""Versions of keyed topics, and their files (docs/decisions/0022).

versions      a version may go when the one after it is `parquet_min_age_ms` old, ascending: readers have found the
              newer one by then. With a table over them it stays until every version of the table that a reader may
              have open shows a later one (design V5)
files         a file may go when no version names it and its number is not above the newest version's: it is of a
              replaced version, or of a round that lost
everything    of a partition whose topic was removed (`topics`)

Never the newest version, also not an empty one: a number that is free again could be put late.
Nothing of a topic that is under legal hold, and nothing by settings that were replaced, as its
bundle's newest checkpoint says just before: a process that slept over a hold may have put a version
that lacks what the one before it holds.

*Stale* are the versions of a topic that is no longer keyed. They hold what the log no longer does, and
it is read from there. Retention treats it as part of the log (`retention`); what is below the log
start leaves the versions by rounds that clean nothing else (`ledgermq_ledger.keyed.plan`), until one empty
version is left.
"""

from __future__ import annotations

from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.cuts.pinned import PinReader
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.keyed.replaced import find_replaced
from ledgermq_ledger.keyed.version import newest_version
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.facts import may_remove
from ledgermq_ledger.topics.topic import Topic


async def find(ledger: LedgerRef, place: PartitionId) -> list[list[Removable]]:
    """Return groups to remove one after the other: each version by itself, ascending, then the
    files.
    """
    store = ledger.store
    gate = await Gate.of(store, await newest_checkpoint(store, ledger.bundle))
    limit_ms = await store.store_time_ms() - ledger.cluster.parquet_min_age_ms
    found = await find_replaced(store, place, limit_ms, lambda key: bool(gate.why_kept(key)))
    versions = [[Removable.of(Kind.KEYED, info, "a newer version has replaced it")] for info in found.versions]
    files = [Removable.of(Kind.KEYED, info, "no version names it") for info in found.files]
    return [*versions, files] if versions or files else []


async def remove(ledger: LedgerRef, topic: Topic, partition: int, groups: list[list[Removable]]) -> list[str]:
    """Remove the groups, and return the keys of what was deleted."""
    deleted: list[str] = []
    pins = PinReader(ledger.store)
    for group in groups:
        wanted = [each.key for each in group]
        if not wanted:
            continue
        checkpoint = await newest_checkpoint(ledger.store, ledger.bundle)
        if not may_remove(checkpoint, topic, partition):
            break
        gate = await Gate.of(ledger.store, checkpoint, pins=pins)
        deleted += await gate.delete(ledger.store, wanted)
    return deleted


async def aged_end(store: ObjectStore, cluster: ClusterSettings, place: PartitionId) -> int:
    """Return the end of the newest version that has been visible to plain readers for
    `parquet_min_age_ms`; never above the newest version's.
    """
    newest = await newest_version(store, place)
    if newest is None:
        return 0
    limit_ms = await store.store_time_ms() - cluster.parquet_min_age_ms
    if newest.published_ms <= limit_ms:
        return newest.version.end
    aged = [end for end, published_ms in newest.version.earlier if published_ms <= limit_ms]
    return max(aged, default=0)


async def stale_partitions(compaction: Compaction, catalog: Catalog, bundle: int) -> list[tuple[Topic, int]]:
    """Return partitions of the bundle, of living topics, that may have stale versions: more than the
    last, empty one.

    A topic that was never altered was never keyed: the store is not asked, nor is it asked again
    about a partition that was found to have none.
    """
    compaction.no_stale_versions.forget_removed(catalog)
    topics = [topic for topic in catalog.living_topics() if bundle in topic.bundles and may_have_been_keyed(topic)]
    found = []
    for topic in sorted(topics, key=lambda topic: topic.id):
        for partition, its_bundle in enumerate(topic.bundles):
            if its_bundle != bundle or (topic, partition) in compaction.no_stale_versions:
                continue
            if await _has_stale_versions(compaction.store, PartitionId(topic.id, partition)):
                found.append((topic, partition))
            # rounds of before have ended
            elif compaction.sources.now_ms() - topic.altered_ms >= compaction.cluster.parquet_min_age_ms:
                compaction.no_stale_versions.add(topic, partition)
    return found


async def _has_stale_versions(store: ObjectStore, place: PartitionId) -> bool:
    """Return True if there is a file or a second version. One LIST, however many there are."""
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
    """Return True if the topic may have been keyed before; it is not now."""
    return not topic.settings.keyed and not topic.internal and topic.version != topic.id

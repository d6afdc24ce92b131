"""Hold what every round of a cluster's compaction needs, whether a command, a service, a broker or
a test runs it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.segments.indexes import SegmentIndexes
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.engine import Engine
from ledgermq_ledger.parquet.report import OnProgress
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_ledger.topics.topic import Topic


class NoStaleVersions:
    """Partitions of topics that are no longer keyed, and in which this process found no versions;
    the store is not read for them again.

    Only a keyed topic gets versions, so this holds until the topic is altered. A process that was
    paused since before the alteration may still put one late; the next process that starts finds
    it. Each entry is the topic's version at that time, and there are at most as many as live topics
    have partitions.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, set[int]]] = {}

    def __contains__(self, of: tuple[Topic, int]) -> bool:
        topic, partition = of
        version, partitions = self._known.get(topic.id, (topic.version, ()))
        return version == topic.version and partition in partitions

    def add(self, topic: Topic, partition: int) -> None:
        version, partitions = self._known.get(topic.id, (topic.version, set[int]()))
        if version != topic.version:
            partitions = set()
        self._known[topic.id] = topic.version, partitions | {partition}

    def forget_removed(self, catalog: Catalog) -> None:
        for topic_id in self._known.keys() - {topic.id for topic in catalog.living_topics()}:
            del self._known[topic_id]


class MergeSearch(NamedTuple):
    """What a look for small files to merge found: no run, by `state`. None will begin below `first`. `end`: of Parquet,
    and `page` the newest one of the list, at that look.
    """

    state: tuple[object, ...]
    first: int
    page: int
    end: int


class MergeSearches:
    """The last look at each partition of topics that have their small files merged, so that the next one reads only
    what came since. It is a hint: one that is lost, or of another state, is a look at all.
    """

    def __init__(self) -> None:
        self._known: dict[int, dict[int, MergeSearch]] = {}

    def get(self, place: PartitionId, state: tuple[object, ...]) -> MergeSearch | None:
        found = self._known.get(place.topic_id, {}).get(place.partition)
        return found if found is not None and found.state == state else None

    def put(self, place: PartitionId, search: MergeSearch) -> None:
        self._known.setdefault(place.topic_id, {})[place.partition] = search

    def keep(self, topics: Container[int]) -> None:
        """Forget all topics but these."""
        for topic_id in [topic_id for topic_id in self._known if topic_id not in topics]:
            del self._known[topic_id]


@dataclass(frozen=True, slots=True)
class Compaction:
    """`engine`: where tasks run. `known`: indexes of untrimmed segments that one look leaves to the
    next, and to tasks.

    `no_stale_versions`: partitions that are known to have none. `merge_searches`: where no merge is due.
    """

    store: ObjectStore
    cluster: ClusterSettings
    sources: Sources
    engine: Engine
    known: SegmentIndexes = field(default_factory=SegmentIndexes)
    on_progress: OnProgress | None = None
    no_stale_versions: NoStaleVersions = field(default_factory=NoStaleVersions)
    merge_searches: MergeSearches = field(default_factory=MergeSearches)

    def ledger(self, bundle: int) -> LedgerRef:
        return LedgerRef(self.store, bundle, self.cluster, self.sources, self.known)

    def unindexed(self, bundle: int) -> LedgerRef:
        """Return a bundle's ledger for one change: no indexes are kept, because most bundles belong to others."""
        return replace(self.ledger(bundle), known=None)

    async def catalog(self) -> Catalog:
        """Return the catalog that is in the store now. Raises what `read_catalog` raises."""
        return await read_catalog(self.ledger(keys.METADATA_BUNDLE))

"""What every round of a cluster's compaction is made with, whoever makes it: a command, a service,
a broker, a test.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger import keys
from ledger.cluster import ClusterSettings
from ledger.log.ledger_ref import LedgerRef
from ledger.log.segment_indexes import SegmentIndexes
from ledger.object_store.contract import ObjectStore
from ledger.parquet.engine import Engine
from ledger.parquet.report import OnProgress
from ledger.topics.catalog import Catalog, Topic, read_catalog
from ledgermq.sources import Sources


class NoStaleVersions:
    """Partitions of topics that are no longer keyed, of which this process has found no version with
    anything in it: the store is not asked about them again.

    Only a keyed topic gets versions, so that holds until the topic is altered. What a process puts
    late all the same, which slept since before the alteration, is found by the next process that
    starts. By the version of the topic as of which nothing was found; as many as living topics have.
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


@dataclass(frozen=True, slots=True)
class Compaction:
    """`engine`: where tasks run. `known`: what one look at untrimmed segments leaves to the next,
    and to tasks.

    `no_stale_versions`: partitions that are known to have none.
    """

    store: ObjectStore
    cluster: ClusterSettings
    sources: Sources
    engine: Engine
    known: SegmentIndexes = field(default_factory=SegmentIndexes)
    on_progress: OnProgress | None = None
    no_stale_versions: NoStaleVersions = field(default_factory=NoStaleVersions)

    def ledger(self, bundle: int) -> LedgerRef:
        return LedgerRef(self.store, bundle, self.cluster, self.sources, self.known)

    async def catalog(self) -> Catalog:
        """Return the catalog as the store has it now. Raises as `read_catalog` does."""
        return await read_catalog(self.ledger(keys.METADATA_BUNDLE))

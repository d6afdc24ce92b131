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
from ledger.parquet.settled import SettledPartitions
from ledger.topics.catalog import Catalog, read_catalog
from ledgermq.sources import Sources


@dataclass(frozen=True, slots=True)
class Compaction:
    """`engine`: where tasks run. `known`: what one look at untrimmed segments leaves to the next,
    and to tasks.

    `settled`: where nothing is left of versions.
    """

    store: ObjectStore
    cluster: ClusterSettings
    sources: Sources
    engine: Engine
    known: SegmentIndexes = field(default_factory=SegmentIndexes)
    on_progress: OnProgress | None = None
    settled: SettledPartitions = field(default_factory=SettledPartitions)

    def ledger(self, bundle: int) -> LedgerRef:
        return LedgerRef(self.store, bundle, self.cluster, self.sources, self.known)

    async def catalog(self) -> Catalog:
        """Return the catalog as the store has it now. Raises as `read_catalog` does."""
        return await read_catalog(self.ledger(keys.METADATA_BUNDLE))

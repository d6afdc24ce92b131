"""Name a ledger and what it is read with.

Each process makes one for each bundle (`ledgermq_ledger.parquet.compaction.Compaction.ledger`,
`ledgermq_broker.bundle.shared.context.BundleContext.ledger`) and passes it on whole. So no function takes
a part of it that belongs to another cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.sources import Sources
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.log.segments.indexes import SegmentIndexes
from ledgermq_ledger.object_store.contract import ObjectStore


@dataclass(frozen=True, slots=True)
class LedgerRef:
    """`known`: segment indexes that were read before, if reads should use and extend them.

    `sources`: clock and ids for what is written; reads do not use it.
    """

    store: ObjectStore
    bundle: int
    cluster: ClusterSettings
    sources: Sources
    known: SegmentIndexes | None = None

"""Which ledger is meant, and what it is read with.

Made once for each process and bundle (`ledger.parquet.compaction.Compaction.ledger`,
`stateless_broker.bundle.context.BundleContext.ledger`) and handed down whole, so that no function
takes a part of it that belongs to another cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.cluster import ClusterSettings
from ledger.log.segment_indexes import SegmentIndexes
from ledger.object_store.contract import ObjectStore
from ledgermq.sources import Sources


@dataclass(frozen=True, slots=True)
class LedgerRef:
    """`known`: segment indexes that were read before, if reads are to keep and use them.

    `sources`: clock and ids of what is written; only reading takes nothing from them.
    """

    store: ObjectStore
    bundle: int
    cluster: ClusterSettings
    sources: Sources
    known: SegmentIndexes | None = None

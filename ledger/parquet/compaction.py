"""What every round of a cluster's compaction is made with, whoever makes it: a command, a service,
a broker, a test.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.log.segment_indexes import SegmentIndexes
from ledger.object_store.contract import ObjectStore
from ledger.parquet.engine import Engine
from ledger.parquet.report import OnProgress
from ledger.parquet.settled import SettledPartitions
from ledger.root.cluster import ClusterSettings
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

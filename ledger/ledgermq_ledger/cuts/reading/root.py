"""Open a root at a cut: its topics, and what each partition has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ledgermq.errors import InvalidConfig
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.cuts.reading.store import CutStore
from ledgermq_ledger.cuts.record import taken_in
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import recover
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.topics.catalog import Catalog, read_catalog


@dataclass(frozen=True, slots=True)
class PartitionAtCut:
    """`start`: of the log. `parquet_end`: offsets from it on are in segments. `end`: the offset after the last one.
    `files`: those that hold records at or above the start, ascending.
    """

    start: int
    parquet_end: int
    end: int
    files: list[fmt.ParquetFile]


@dataclass(frozen=True, slots=True)
class RootAtCut:
    """`cluster`: with the bundles that it had at the cut. `catalog`: the topics, groups' settings and rules then."""

    store: CutStore
    cluster: ClusterSettings
    catalog: Catalog

    async def partition(self, place: PartitionId) -> PartitionAtCut:
        """Raises DataDamaged, the store's errors."""
        topic = self.catalog.topics_by_id[place.topic_id]
        bundle = topic.bundles[place.partition]
        recovered = await recover(LedgerRef(self.store, bundle, self.cluster, Sources()))
        counters = partition_of(recovered.checkpoint, *place)
        start = max(counters.log_start, 0)
        files = await PageReader(self.store, bundle).files_from(counters, max(start, counters.parquet_start))
        end = max(recovered.state.end(*place), counters.parquet_end)
        return PartitionAtCut(start, counters.parquet_end, end, files)


async def open_at_cut(store: ObjectStore, cluster: ClusterSettings, cut_id: int) -> RootAtCut:
    """Open a cut by its id. Raises UnknownCut, DataDamaged, FormatNotSupported, the store's errors."""
    at = await CutStore.open(store, cut_id)
    then = replace(cluster, bundles=len(at.cut.bundles))
    return RootAtCut(at, then, await read_catalog(LedgerRef(at, keys.METADATA_BUNDLE, then, Sources())))


async def open_named(store: ObjectStore, cluster: ClusterSettings, name: str) -> RootAtCut:
    """Open a cut by its name, without a broker. Raises also Unavailable while it is being taken."""
    if not name:
        raise InvalidConfig("name the cut: `ledgermq cut list` shows those that there are")
    catalog = await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, Sources()))
    return await open_at_cut(store, cluster, taken_in(catalog, name).id)

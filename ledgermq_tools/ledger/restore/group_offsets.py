"""Set committed offsets back that lie beyond the end of their partition.

The places of a cut are taken one after the other. So a plain commit may be below the place of its group's bundle, while
the records that were read before it are above the place of theirs. In the cluster itself they are there; in a copy of
the cut, records would come under these offsets later, and the group would pass over them (design I19).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.cuts.reading.appending import append_records
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.history import History, read_whole
from ledgermq_ledger.log.internal_topic import read_internal
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.recovery import Recovered, recover
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.topics.catalog import Catalog, grown, read_catalog
from ledgermq_offsets.classic.records import stored_offsets
from ledgermq_offsets.state.group import Group
from ledgermq_offsets.state.records import Entry, OffsetEntry, OffsetValue, PendingEntry, encode


async def end_with_their_partitions(store: ObjectStore, cluster: ClusterSettings, sources: Sources) -> int:
    """Set offsets back that lie beyond the end, staged ones, too; return how many. Repeated calls are harmless.

    A bundle with such offsets is claimed first and then looked at again, so what a broker of this root has committed
    meanwhile counts. Raises Unavailable if another process has claimed the bundle, DataDamaged, the store's errors.
    """
    catalog = await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, sources))
    topic = catalog.topics_by_name.get(keys.OFFSETS_TOPIC)
    changed, look = 0, _Look(store, grown(cluster, catalog), sources, catalog)
    for partition, bundle in enumerate(topic.bundles if topic is not None else ()):
        if await look.ahead(partition, bundle):
            changed += await _set_back(replace(look, ends={}), partition, bundle)
    return changed


@dataclass(frozen=True, slots=True)
class _Look:
    """`ends`: what was recovered of bundles, at the first need."""

    store: ObjectStore
    cluster: ClusterSettings
    sources: Sources
    catalog: Catalog
    ends: dict[int, Recovered] = field(default_factory=dict)

    def ledger(self, bundle: int) -> LedgerRef:
        return LedgerRef(self.store, bundle, self.cluster, self.sources)

    async def ahead(self, partition: int, bundle: int) -> list[Entry]:
        """Return the entries of one partition of `__consumer_offsets` as they should be, those that are not."""
        groups = await read_whole(self.ledger(bundle), lambda history: self._groups(history, partition))
        found: list[Entry] = []
        for group in groups:
            for place, value in _committed(group):
                end = await self._end(place)
                if value.offset is not None and end is not None and value.offset > end:
                    found.append(OffsetEntry(group.name, place, replace(value, offset=end)))
            for key, staged in sorted(group.pending.items()):
                ends = {place: await self._end(place) for place in staged.offsets}
                within = {
                    place: each if end is None or each.offset <= end else replace(each, offset=end)
                    for (place, each), end in zip(staged.offsets.items(), ends.values(), strict=True)
                }
                if within != dict(staged.offsets):
                    found.append(PendingEntry(group.name, key, replace(staged, offsets=within)))
        return found

    async def _groups(self, history: History, partition: int) -> list[Group]:
        topic = self.catalog.living(keys.OFFSETS_TOPIC)
        records = await read_internal(self.store, history, topic.id, partition)
        return list(stored_offsets((record.key, record.value) for record in records).groups.values())

    async def _end(self, place: PartitionId) -> int | None:
        """Return the end of a partition; None if its topic is gone."""
        topic = self.catalog.topics_by_id.get(place.topic_id)
        if topic is None or place.partition >= topic.partitions:
            return None
        bundle = topic.bundles[place.partition]
        if bundle not in self.ends:
            self.ends[bundle] = await recover(self.ledger(bundle))
        recovered = self.ends[bundle]
        return max(recovered.state.end(*place), partition_of(recovered.checkpoint, *place).parquet_end)


def _committed(group: Group) -> list[tuple[PartitionId, OffsetValue]]:
    return [
        (PartitionId(topic_id, partition), value)
        for topic_id, values in group.offsets.items()
        for partition, value in values.items()
    ]


async def _set_back(look: _Look, partition: int, bundle: int) -> int:
    async def decide() -> list[LogRecord]:
        return [encode(entry) for entry in await look.ahead(partition, bundle)]

    place = PartitionId(look.catalog.living(keys.OFFSETS_TOPIC).id, partition)
    return await append_records(look.ledger(bundle), place, decide)

"""Read the queue groups of a root without a broker: the records of `__shares`, and where the partitions
end that they speak about. Leases and waits are in the memory of brokers only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from ledgermq.sources import Sources
from ledgermq_broker.queues.state.bundle_shares import SPREAD_MAX, BundleShares
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.queues.state.records import ShareKey
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partitions_by_key
from ledgermq_ledger.log.history import History, read_whole
from ledgermq_ledger.log.internal_topic import read_internal
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.partitions.moves import Moves
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.root.damage import Collecting
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_ledger.topics.topic import Topic


@dataclass(slots=True)
class BundleView:
    """One partition of `__shares` and its bundle, at one moment.

    `ends`: of all partitions of the bundle that have records; `log_starts`: of those that the newest
    checkpoint names. `without_start`: chunks are stored of these, but not where the group begins; `state`
    does not have them. `moves`: what has left and come. `damaged`: some records cannot be read.
    """

    bundle: int
    partition: int
    state: BundleShares
    ends: Mapping[PartitionId, int]
    log_starts: Mapping[PartitionId, int]
    moves: Moves = field(default_factory=Moves)
    without_start: list[ShareKey] = field(default_factory=list)
    damaged: bool = False

    def keep(self, is_wanted: Callable[[ShareKey], bool]) -> None:
        """Forget the other partitions of groups."""
        for key in [key for key in self.state.partitions if not is_wanted(key)]:
            del self.state.partitions[key]
        self.without_start = [key for key in self.without_start if is_wanted(key)]


def is_in_charge(bundle: int, key: ShareKey, moves: Mapping[int, Moves], catalog: Catalog) -> bool:
    """Return whether a bundle answers for a partition of a group (design Y15): the one that the partition leaves until
    the next one has opened it. What others have stored of it is removed later. `moves`: of the bundles that could
    be read. Of a partition that has not moved, every bundle that knows it.
    """
    topic = catalog.topics_by_id.get(key.topic_id)
    move = topic.moves.get(key.partition) if topic is not None else None
    if topic is None or move is None:
        return True
    target = topic.bundles[key.partition]
    there = moves.get(target)
    has_come = there is not None and there.move(PartitionId(*key[1:])) >= move.id
    return bundle == (target if has_come or move.ended else move.source)


async def read_shares(
    store: ObjectStore, cluster: ClusterSettings, sources: Sources, collecting: Collecting
) -> tuple[list[BundleView], Catalog]:
    """Return all partitions that can be read, and the topics, read after them: topics are removed, but no
    id comes back. Damage goes to `collecting`. Raises the store's other errors.
    """
    metadata = LedgerRef(store, keys.METADATA_BUNDLE, cluster, sources)
    catalog = Catalog()
    with collecting(keys.ledger(keys.METADATA_BUNDLE)):
        catalog = await read_catalog(metadata)
    topic = catalog.topics_by_name.get(keys.SHARES_TOPIC)
    if topic is None:
        return [], catalog
    found = []
    for partition, bundle in enumerate(topic.bundles):
        with collecting(keys.ledger(bundle)):
            ledger = LedgerRef(store, bundle, cluster, sources)
            found.append(await read_whole(ledger, partial(_fold, store, topic, partition, collecting)))
    with collecting(keys.ledger(keys.METADATA_BUNDLE)):
        catalog = await read_catalog(metadata)
    moves = {view.bundle: view.moves for view in found}
    for view in found:
        view.keep(lambda key, bundle=view.bundle: is_in_charge(bundle, key, moves, catalog))  # type: ignore[misc]
    return found, catalog


async def _fold(
    store: ObjectStore, topic: Topic, partition: int, collecting: Collecting, history: History
) -> BundleView:
    """Return what one reading of the ledger shows, so that records and ends are of the same moment. A
    damaged record is reported, and the next is read.
    """
    ends = dict(history.state.ends)
    log_starts = {place: each.log_start for place, each in partitions_by_key(history.checkpoint).items()}
    state = BundleShares(ShareLimits())
    found = BundleView(history.bundle, partition, state, ends, log_starts, history.state.moves, damaged=True)
    records = await read_internal(store, history, topic.id, partition)
    applied = 0
    for record in records:
        with collecting(_object_of(history, PartitionId(topic.id, partition), record.offset)):
            found.state.apply(record.key, record.value)
            applied += 1
    found.damaged = applied < len(records)
    for key in [key for key, each in found.state.partitions.items() if each.spread > SPREAD_MAX]:
        del found.state.partitions[key]  # it was reported, and is too large to list
    found.without_start = [key for key, each in found.state.partitions.items() if each.has_chunks_only]
    found.state.loaded()
    return found


def _object_of(history: History, place: PartitionId, offset: int) -> str:
    """Return the name of the segment that has this record, or else of the snapshot."""
    for slot in history.segments:
        for entry in slot.index.batches:
            if (entry.topic_id, entry.partition) == place and 0 <= offset - entry.base_offset < entry.record_count:
                return keys.segment(history.bundle, slot.index.slot)
    return keys.snapshot(history.bundle, history.checkpoint.snapshot_plan)

"""Read the transactions of a root without a broker: the records of `__transactions`, the offsets that are
staged in groups, and the index entries of staged batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ledgermq.sources import Sources
from ledgermq_broker.transactions.state.coordinating.ids import Ids
from ledgermq_broker.transactions.state.participating.staged import BundleState
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.history import History, read_whole
from ledgermq_ledger.log.internal_topic import read_internal
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.root.damage import Collecting
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_ledger.topics.topic import Topic
from ledgermq_offsets.classic.records import stored_offsets
from ledgermq_offsets.committing.pending import PendingTransaction
from ledgermq_offsets.committing.pending import transactions as with_offsets


class StagedBatch(NamedTuple):
    """A batch of `__staged`, as the index of its segment lists it. `length`: bytes."""

    slot: int
    record_count: int
    length: int
    crc: int


@dataclass(slots=True)
class BundleTransactions:
    """One partition of `__transactions` and its bundle, at one moment.

    `ids`: the ids that its coordinator decides about. `state`: what is staged in the bundle. `offsets`:
    transactions with staged offsets in the bundle's groups. `batches`: batches of `__staged` in the
    ledger, by base offset. `log_start`: that of `__staged`.
    """

    bundle: int
    partition: int
    ids: Ids = field(default_factory=Ids)
    state: BundleState = field(default_factory=BundleState)
    offsets: list[PendingTransaction] = field(default_factory=list)
    batches: dict[int, StagedBatch] = field(default_factory=dict)
    log_start: int = 0


async def read_transactions(
    store: ObjectStore, cluster: ClusterSettings, sources: Sources, collecting: Collecting
) -> list[BundleTransactions]:
    """Return all partitions that can be read; damage goes to `collecting`. Raises the store's other
    errors.
    """
    catalog = Catalog()
    with collecting(keys.ledger(keys.METADATA_BUNDLE)):
        catalog = await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, sources))
    topic = catalog.topics_by_name.get(keys.TRANSACTIONS_TOPIC)
    found = []
    for partition, bundle in enumerate(topic.bundles if topic is not None else ()):
        with collecting(keys.ledger(bundle)):
            ledger = LedgerRef(store, bundle, cluster, sources)
            found.append(await read_whole(ledger, partial(_fold, store, catalog, partition)))
    return found


async def _fold(store: ObjectStore, catalog: Catalog, partition: int, history: History) -> BundleTransactions:
    """Return the transactions as one reading of the ledger shows them, so that records and batches are of
    the same moment.
    """
    found = BundleTransactions(history.bundle, partition)
    for record in await read_internal(store, history, catalog.living(keys.TRANSACTIONS_TOPIC).id, partition):
        found.ids.apply(record.key, record.value)
        found.state.apply(record.key, record.value)
    for topic, number in _partitions(catalog, keys.OFFSETS_TOPIC, history.bundle):
        records = await read_internal(store, history, topic.id, number)
        groups = stored_offsets((record.key, record.value) for record in records)
        pending = ((name, key) for of_producer in groups.pending.values() for name, key in of_producer)
        found.offsets += with_offsets((name, key, groups.groups[name].pending[key]) for name, key in pending)
    for topic, number in _partitions(catalog, keys.STAGED_TOPIC, history.bundle):
        found.log_start = partition_of(history.checkpoint, topic.id, number).log_start
        for segment in history.segments:
            for entry in segment.index.batches:
                if (entry.topic_id, entry.partition) == (topic.id, number):
                    found.batches[entry.base_offset] = StagedBatch(
                        segment.index.slot, entry.record_count, entry.length, entry.crc
                    )
    return found


def _partitions(catalog: Catalog, name: str, bundle: int) -> Iterator[tuple[Topic, int]]:
    topic = catalog.topics_by_name.get(name)
    bundles: Sequence[int] = topic.bundles if topic is not None else ()
    for number, place in enumerate(bundles):
        if topic is not None and place == bundle:
            yield topic, number

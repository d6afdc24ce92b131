"""Read the timed messages of a root without a broker: the records of `__timers`, and the blocks of the
hidden partitions that still count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow.compute as pc

from ledgermq.errors import DataDamaged
from ledgermq.sources import Sources
from ledgermq_broker.timed.state.blocks import decode_block, effective_dues
from ledgermq_broker.timed.state.bundle_timers import BundleTimers
from ledgermq_broker.timed.state.limits import TimerLimits
from ledgermq_broker.timed.state.places import RangeId
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.history import History, read_whole
from ledgermq_ledger.log.internal_topic import read_batches, read_internal
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.root.damage import Collecting
from ledgermq_ledger.topics.catalog import Catalog, read_catalog


class StoredBlock(NamedTuple):
    """The header of a block that still counts, and what its rows say. `first_due_us`, `last_due_us`:
    effective due times. `has_ids`: its rows have ids, as in ranges.
    """

    offset: int
    slot: int
    target: PartitionId
    floor_us: int
    messages: int
    first_due_us: int
    last_due_us: int
    has_ids: bool


@dataclass(slots=True)
class HiddenPartition:
    """The intake (`range_id` None), or the hidden partition of a range, from `begin_offset` on, where
    what still counts begins. `parquet_end`: below it, records are in Parquet. `covered`: offsets
    [begin, end) of the batches in segments, ascending. `blocks`: of these; empty unless they were read.
    """

    place: PartitionId
    name: str
    range_id: RangeId | None
    begin_offset: int
    log_start: int
    parquet_end: int
    end: int
    covered: list[tuple[int, int]] = field(default_factory=list)
    blocks: list[StoredBlock] = field(default_factory=list)


@dataclass(slots=True)
class BundleView:
    """One partition of `__timers` and its bundle, at one moment."""

    bundle: int
    partition: int
    state: BundleTimers
    hidden: list[HiddenPartition] = field(default_factory=list)

    @property
    def intake(self) -> HiddenPartition:
        return self.hidden[0]


async def read_timers(
    store: ObjectStore, cluster: ClusterSettings, sources: Sources, collecting: Collecting, *, blocks: bool
) -> tuple[list[BundleView], Catalog]:
    """Return all partitions that can be read, and the topics; damage goes to `collecting`. `blocks`: read
    the blocks that are in segments too. Raises the store's other errors.
    """
    catalog = Catalog()
    with collecting(keys.ledger(keys.METADATA_BUNDLE)):
        catalog = await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, sources))
    topic, *hidden = map(catalog.topics_by_name.get, (keys.TIMERS_TOPIC, keys.DELAYED_TOPIC, keys.DELAYED_FAR_TOPIC))
    found = []
    for partition, bundle in enumerate(topic.bundles if topic is not None and None not in hidden else ()):
        with collecting(keys.ledger(bundle)):
            ledger = LedgerRef(store, bundle, cluster, sources)
            found.append(await _read_bundle(ledger, catalog, partition, collecting if blocks else None))
    return found, catalog


async def _read_bundle(
    ledger: LedgerRef, catalog: Catalog, partition: int, collecting: Collecting | None
) -> BundleView:
    async def read(history: History) -> BundleView:
        found = await _fold(ledger.store, history, catalog, partition)
        if collecting is not None:
            await _read_blocks(ledger.store, history, found, collecting)
        return found

    return await read_whole(ledger, read)


async def _fold(store: ObjectStore, history: History, catalog: Catalog, partition: int) -> BundleView:
    """Return what one reading of the ledger shows, so that records and blocks are of the same moment."""
    state = BundleTimers(TimerLimits())
    for record in await read_internal(store, history, catalog.living(keys.TIMERS_TOPIC).id, partition):
        state.apply(record.key, record.value)
    found = BundleView(history.bundle, partition, state)
    ranges = sorted(state.range_starts().items(), key=lambda item: item[0])
    for range_id, begin in [(None, state.intake_start()), *ranges]:
        found.hidden.append(_hidden(history, catalog, range_id, begin))
    by_place = {hidden.place: hidden for hidden in found.hidden}
    for slot in history.segments:
        for entry in slot.index.batches:
            hidden = by_place.get(PartitionId(entry.topic_id, entry.partition))
            if hidden is not None:
                hidden.covered.append((entry.base_offset, entry.base_offset + entry.record_count))
    return found


def _hidden(history: History, catalog: Catalog, range_id: RangeId | None, begin: int) -> HiddenPartition:
    if range_id is not None and range_id.far:
        name, number = keys.DELAYED_FAR_TOPIC, keys.far_partition(history.bundle, range_id.place)
    else:
        name = keys.DELAYED_TOPIC
        number = keys.near_partition(history.bundle, 0 if range_id is None else range_id.place)
    place = PartitionId(catalog.living(name).id, number)
    counters = partition_of(history.checkpoint, *place)
    end = history.state.ends.get(place, 0)
    return HiddenPartition(place, name, range_id, begin, counters.log_start, counters.parquet_end, end)


async def _read_blocks(store: ObjectStore, history: History, found: BundleView, collecting: Collecting) -> None:
    """Read the blocks, one segment at a time. A damaged one is reported, and the next is read."""
    by_place = {hidden.place: hidden for hidden in found.hidden}
    for slot in history.segments:
        number = slot.index.slot
        for place in sorted({PartitionId(entry.topic_id, entry.partition) for entry in slot.index.batches}):
            if place not in by_place:
                continue
            hidden = by_place[place]
            try:
                records = await read_batches(store, history.bundle, [slot], *place, hidden.begin_offset)
            except DataDamaged as damage:
                with collecting(keys.segment(history.bundle, number)):
                    raise damage
                continue
            for record in records:
                with collecting(keys.segment(history.bundle, number)):
                    block = decode_block(record.key, record.value)
                    dues = pc.min_max(effective_dues(block)).as_py()
                    hidden.blocks.append(
                        StoredBlock(
                            record.offset,
                            number,
                            block.target,
                            block.floor_us,
                            block.records.num_rows,
                            dues["min"],
                            dues["max"],
                            block.ids is not None,
                        )
                    )

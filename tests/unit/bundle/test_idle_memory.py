"""What an owner keeps in memory for a partition with which nothing happens (row S4 of docs/performance.md)."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace

from ledgermq.sources import Sources
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_ledger.log.partitions.producers import ProducerSession
from ledgermq_ledger.object_store import memory
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.worlds.bundles import bundle_context, opened, produce
from tests.worlds.ledgers import batch

PARTITIONS, TOGETHER = 4000, 500
BYTES_MAX = 850
"""Beside the record itself: 772 were measured, 1109 when each structure held an id of the partition of its own, and
2500 when each had room for many batches.
"""


async def a_record_to_each(owner: BundleOwner, partitions: range) -> None:
    for first in partitions[::TOGETHER]:
        places = [(1000 + number // 10, number % 10) for number in range(first, first + TOGETHER)]
        session = ProducerSession(b"p" * 16, 0, 0, owner.opened_slot())
        await produce(
            owner,
            *[batch(b"one", topic_id=topic, partition=partition, producer=session) for topic, partition in places],
        )


def kept_bytes(context: BundleContext) -> int:
    """Without the batches in the cache, and without what is in the store, which is in memory here."""
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, memory.__file__)])
    return sum(trace.size for trace in snapshot.traces) - context.tail_cache.size_bytes


async def test_a_partition_with_one_record_takes_little(sources: Sources) -> None:
    context = bundle_context(MemoryStore("idle", sources), sources)
    context.cluster = replace(context.cluster, producer_states_max=10 * PARTITIONS)
    async with opened(context) as owner:
        await a_record_to_each(owner, range(TOGETHER))
        tracemalloc.start()
        try:
            before = kept_bytes(context)
            await a_record_to_each(owner, range(TOGETHER, TOGETHER + PARTITIONS))
            taken = kept_bytes(context) - before
        finally:
            tracemalloc.stop()
        assert taken / PARTITIONS <= BYTES_MAX

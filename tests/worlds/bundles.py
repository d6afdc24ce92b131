"""Owned bundles for tests: a topic with partitions in bundle 1, a context, and what an owner
serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.sources import Sources
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext, BundleLimits, BundleMetrics
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic
from tests.worlds.ledgers import STATES_MAX, TOPIC_ID

TOPIC = Topic(TOPIC_ID, "t", (1, 1, 1))
QUIET = BundleLimits(background_compaction=False)


def bundle_context(
    store: ObjectStore,
    sources: Sources,
    limits: BundleLimits = QUIET,
    metrics: BundleMetrics | None = None,
    broker: str = "a",
) -> BundleContext:
    catalog = Catalog()
    catalog.topics_by_name[TOPIC.name] = catalog.topics_by_id[TOPIC.id] = TOPIC
    catalog.offset = TOPIC.id + 1
    cluster = ClusterSettings(
        producer_states_max=STATES_MAX, cluster_id="test", url_life_ms=1000, parquet_min_age_ms=4000
    )
    return BundleContext(store, sources, cluster, broker, lambda: catalog, limits, metrics or BundleMetrics())


@asynccontextmanager
async def opened(context: BundleContext, bundle: int = 1) -> AsyncIterator[BundleOwner]:
    owner = await BundleOwner.open(bundle, context)
    try:
        yield owner
    finally:
        await owner.close()


async def produce(owner: BundleOwner, *batches: Batch) -> list[int]:
    return list(await asyncio.gather(*owner.produce(batches, durable=True)))


async def fetch_values(
    owner: BundleOwner, partition: int, offset: int = 0, bytes_max: int = 1 << 20, topic: Topic = TOPIC
) -> list[bytes]:
    """The values from `offset` to the high watermark; asserts that offsets are dense."""
    values: list[bytes] = []
    while True:
        found = await owner.fetch(topic, partition, offset, bytes_max)
        if not found.batches:
            return values
        for stored in found.batches:
            assert stored.base_offset <= offset < stored.end, (offset, stored.base_offset, stored.record_count)
            check_crc(stored.data, stored.crc)
            rows = decode_batch(stored.data).column("value").to_pylist()
            assert len(rows) == stored.record_count
            values += rows[offset - stored.base_offset :]
            offset = stored.end

"""Roots with a small cluster in them, as brokers would have written it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterDefaults, open_cluster
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.topics.topic import METADATA, Topic, encode_topic_record, topic_key
from tests.stores.backends import file_store
from tests.worlds.ledgers import STATES_MAX, append_and_wait, batch, ledger_of, own

BUNDLES = 3
FLIGHTS = Topic(1, "flights", (1,), {"cleanup.policy": "delete"})


async def fill_root(folder: Path) -> None:
    """Topic flights with one partition: two terms of bundle 1, a checkpoint between them, three
    segments, four records.
    """
    sources = Sources()
    async with file_store(folder) as store:
        await open_cluster(store, sources, ClusterDefaults(bundles=BUNDLES, producer_states_max=STATES_MAX))
        metadata = await own(store, sources, "a", keys.METADATA_BUNDLE)
        for topic in (METADATA, FLIGHTS):
            await append_and_wait(metadata, creation(topic))
        first = await own(store, sources, "a")
        await append_and_wait(first, batch(b"one", b"two", topic_id=FLIGHTS.id))
        await advance_checkpoint(ledger_of(store, 1, sources=sources))
        second = await own(store, sources, "b")
        for value in (b"three", b"four"):
            await append_and_wait(second, batch(value, topic_id=FLIGHTS.id, timestamp_ms=1_700_000_000_000))
        await store.put(keys.broker("a"), b'{"address": "127.0.0.1:9650"}')


def creation(topic: Topic) -> Batch:
    row = {"key": topic_key(topic.name), "value": encode_topic_record(topic, creation=True)}
    data = encode_batch(pa.RecordBatch.from_pylist([row], schema=SCHEMA))
    return Batch(METADATA.id, 0, 1, crc32c(data), 0, 0, data)

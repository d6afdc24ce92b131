"""Ledgers for tests: batches, terms of ownership, and what a ledger says when it is read back."""

from __future__ import annotations

import asyncio
import datetime as dt

import pyarrow as pa
from crc32c import crc32c

from ledgermq.protocol.batches.records import SCHEMA, decode_batch, encode_batch
from ledgermq.sources import Sources
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.partitions.producers import ProducerSession
from ledgermq_ledger.log.segments.indexes import SegmentIndexes
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.writing.in_flight import Append
from ledgermq_ledger.log.writing.judging import MayWrite
from ledgermq_ledger.log.writing.writer import LedgerWriter, OnDurable, OnRefused, claim
from ledgermq_ledger.object_store.contract import ObjectStore

STATES_MAX = 100
SMALL_CLUSTER = ClusterSettings(producer_states_max=STATES_MAX)
TOPIC_ID = 7


def encode_values(values: list[bytes], timestamp_ms: int = 0, compression: str = "none") -> bytes:
    when = dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC)
    rows = [{"key": value[:1], "value": value, "timestamp": when, "timestampType": 0} for value in values]
    return encode_batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), compression)  # type: ignore[arg-type]


def batch(
    *values: bytes,
    topic_id: int = TOPIC_ID,
    partition: int = 0,
    producer: ProducerSession | None = None,
    timestamp_ms: int = 0,
) -> Batch:
    data = encode_values(list(values), timestamp_ms)
    us = timestamp_ms * 1000
    return Batch(topic_id, partition, len(values), crc32c(data), us, us, data, producer)


def session(sequence: int, producer: int = 1, opened_slot: int = 10**6) -> ProducerSession:
    return ProducerSession(producer.to_bytes(16, "big"), 0, sequence, opened_slot)


def ledger_of(
    store: ObjectStore,
    bundle: int = 1,
    *,
    cluster: ClusterSettings = SMALL_CLUSTER,
    sources: Sources | None = None,
    known: SegmentIndexes | None = None,
) -> LedgerRef:
    """`sources`: needed only where something is written."""
    return LedgerRef(store, bundle, cluster, sources or Sources(), known)


async def take_over(
    ledger: LedgerRef,
    broker: str,
    on_durable: OnDurable = lambda index, data, keys: None,
    on_refused: OnRefused = lambda slot, error: None,
    may_write: MayWrite = lambda key, producer_id, principal: None,
) -> LedgerWriter:
    return LedgerWriter(ledger, broker, await claim(ledger, broker), on_durable, on_refused, may_write)


async def own(store: ObjectStore, sources: Sources, broker: str = "a", bundle: int = 1) -> LedgerWriter:
    return await take_over(ledger_of(store, bundle, sources=sources), broker)


def append(writer: LedgerWriter, *batches: Batch) -> list[asyncio.Future[int]]:
    """One segment with these batches; the futures of their base offsets."""
    appends = [Append(b, asyncio.get_running_loop().create_future()) for b in batches]
    writer.write(appends)
    return [a.done for a in appends]


async def append_and_wait(writer: LedgerWriter, *batches: Batch) -> list[int]:
    return list(await asyncio.gather(*append(writer, *batches)))


async def read_values(
    store: ObjectStore, partition: int = 0, bundle: int = 1, topic_id: int = TOPIC_ID
) -> dict[int, bytes]:
    """What any reader sees: offset → value, of the segments that are not trimmed; asserts that no
    offset is there twice.
    """
    from ledgermq_ledger import keys

    found: dict[int, bytes] = {}
    for slot in (await read_history(ledger_of(store, bundle))).segments:
        for entry in slot.index.batches:
            if (entry.topic_id, entry.partition) == (topic_id, partition):
                data = await store.get_range(keys.segment(bundle, slot.index.slot), entry.position, entry.length)
                for i, value in enumerate(decode_batch(data).column("value").to_pylist()):
                    assert entry.base_offset + i not in found
                    found[entry.base_offset + i] = value
    return found

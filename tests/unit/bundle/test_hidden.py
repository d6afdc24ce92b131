"""A bundle with a partition of a hidden topic: its owner reads it back from segments and from Parquet,
and lets go of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from crc32c import crc32c

from ledgermq.errors import OffsetOutOfRange
from ledgermq.protocol.batches.records import SCHEMA, decode_batch, encode_batch
from ledgermq.sources import Sources
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext, BundleLimits
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_ledger.topics.settings import parse_stored_settings
from ledgermq_ledger.topics.topic import Topic
from tests.virtual_time import virtual_in, virtual_sources
from tests.worlds.bundles import QUIET, bundle_context, opened, produce
from tests.worlds.ledgers import batch

RAW = {"internal.kind": "hidden"}
FAR = Topic(3, keys.DELAYED_FAR_TOPIC, (1, 1), RAW, parse_stored_settings(RAW))
PLACE = PartitionId(FAR.id, 1)
Record = tuple[bytes, bytes]


@asynccontextmanager
async def world() -> AsyncIterator[tuple[MemoryStore, Sources]]:
    sources = virtual_sources()
    yield MemoryStore("hidden", sources), sources


in_world = virtual_in(world, "store", "sources")


def context_of(store: MemoryStore, sources: Sources, limits: BundleLimits = QUIET) -> BundleContext:
    context = replace(bundle_context(store, sources, limits), run_blocking=run_inline)
    context.catalog().topics_by_id[FAR.id] = context.catalog().topics_by_name[FAR.name] = FAR
    return context


def blocks(count: int, size_bytes: int) -> list[Record]:
    """Keys of any bytes, and values that are record batches themselves."""
    drawn = random.Random(1)
    return [
        (
            b"\x00\xff" + drawn.randbytes(number % 40),
            encode_batch(pa.RecordBatch.from_pylist([{"key": None, "value": drawn.randbytes(size_bytes)}], SCHEMA)),
        )
        for number in range(count)
    ]


def batch_of(record: Record) -> Batch:
    key, value = record
    data = encode_batch(pa.RecordBatch.from_pylist([{"key": key, "value": value}], SCHEMA))
    return Batch(FAR.id, PLACE.partition, 1, crc32c(data), 0, 0, data)


async def read_back(owner: BundleOwner, offset: int, bytes_max: int = 1 << 20) -> list[Record]:
    """Everything from `offset` on."""
    found: list[Record] = []
    end = owner.durable_end(FAR, PLACE.partition)
    while offset < end:
        read = await owner.fetch(FAR, PLACE.partition, offset, bytes_max)
        for stored in read.batches:
            assert stored.base_offset == offset
            assert crc32c(stored.data) == stored.crc
            rows = decode_batch(stored.data)
            assert rows.num_rows == stored.record_count
            found += zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True)
            offset = stored.end
    return found


async def compact(context: BundleContext) -> None:
    compaction = Compaction(context.store, context.cluster, context.sources, LocalEngine(context.sources, run_inline))
    await compact_bundle(compaction, 1, context.catalog(), everything=True)


@in_world
async def test_keys_and_values_are_read_back_from_segments_and_then_from_parquet(
    store: MemoryStore, sources: Sources
) -> None:
    written = blocks(30, 70_000)
    context = context_of(store, sources)
    async with opened(context) as owner:
        for record in written:
            await produce(owner, batch_of(record), batch(b"beside"))
        assert await read_back(owner, 0) == written
        await compact(context)
        assert await read_back(owner, 0) == written, "while the owner holds its segments"
    async with opened(context_of(store, sources)) as owner:
        for bytes_max in (1 << 20, 1):
            assert await read_back(owner, 0, bytes_max) == written
            assert await read_back(owner, 17, bytes_max) == written[17:]
        later = blocks(3, 10)
        for record in later:
            await produce(owner, batch_of(record))
        assert await read_back(owner, 28) == [*written[28:], *later], "over the border of Parquet and segments"
        assert [info.key async for info in store.list(keys.segments(1))] != []
    hidden = [info.key async for info in store.list(keys.HIDDEN)]
    assert hidden == [keys.ParquetName(None, 1, 0, 29, FAR.id, 1).key]
    assert not any("delayed" in key for key in [info.key async for info in store.list("")])


@in_world
async def test_the_log_start_moves_within_parquet_and_beyond(store: MemoryStore, sources: Sources) -> None:
    written = blocks(10, 100)
    context = context_of(store, sources)
    async with opened(context) as owner:
        await produce(owner, *map(batch_of, written))
        await compact(context)
        await owner.move_internal_log_starts({PLACE: 4})
        with pytest.raises(OffsetOutOfRange):
            await owner.fetch(FAR, PLACE.partition, 3, 1)
        assert await read_back(owner, 4) == written[4:]
        await owner.move_internal_log_starts({PLACE: 10})
        assert await owner.list_offset(FAR, PLACE.partition, "earliest") == 10
        with pytest.raises(OffsetOutOfRange):
            await owner.fetch(FAR, PLACE.partition, 9, 1)
        assert await read_back(owner, 10) == []
    async with opened(context_of(store, sources)) as owner:
        assert await owner.list_offset(FAR, PLACE.partition, "earliest") == 10
        await produce(owner, batch_of(written[0]))
        assert await read_back(owner, 10) == written[:1]


@in_world
async def test_background_rounds_write_it_after_its_lag_and_delete_it_below_its_log_start(
    store: MemoryStore, sources: Sources
) -> None:
    async def files() -> list[str]:
        return [info.key async for info in store.list(keys.HIDDEN)]

    written = blocks(40, 100)
    async with opened(context_of(store, sources, BundleLimits())) as owner:
        for record in written[:20]:
            await produce(owner, batch_of(record))
        await asyncio.sleep(3000)
        assert await files() == []
        assert owner.status().compaction_age_ms >= 3_000_000, "what waits for Parquet is in the metric of the lag"
        await asyncio.sleep(1200)
        assert len(await files()) == 1
        assert owner.status().untrimmed_slots == 0
        await produce(owner, *map(batch_of, written[20:]))
        await owner.move_internal_log_starts({PLACE: 40})
        await asyncio.sleep(2 * 3600)
        assert await files() == [], "the first 20 were deleted, the others never written"
        assert owner.status().untrimmed_slots == 0
        assert (await newest_checkpoint(store, 1)).snapshot_plan == 0
        assert await owner.list_offset(FAR, PLACE.partition, "latest") == 40

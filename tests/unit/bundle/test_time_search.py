"""Offsets by time: over segments, over Parquet, over both, and with times that do not ascend."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pyarrow as pa
import pytest
from crc32c import crc32c

from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq.sources import Sources
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.segments.time_search import first_row_at
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_bundle
from tests.unit.bundle.counted_reads import NO_CACHE, CountingStore, HeldAnswers, segments
from tests.worlds.bundles import TOPIC, bundle_context, opened, produce
from tests.worlds.ledgers import TOPIC_ID, batch


def timed(*times_us: int | None, values: Sequence[bytes] = ()) -> Batch:
    columns = {"value": list(values) or [b"v"] * len(times_us), "timestamp": list(times_us)}
    arrays = [pa.array(columns.get(f.name, [None] * len(times_us)), f.type) for f in SCHEMA]
    data = encode_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    known = [t for t in times_us if t is not None] or [0]
    return Batch(TOPIC_ID, 0, len(times_us), crc32c(data), min(known), max(known), data)


TIMES: list[list[int | None]] = [[10, 20], [5, None, 40], [30], [None], [25, 60, 50]]
FLAT = [time for times in TIMES for time in times]


def expected(at: int) -> int:
    return next((offset for offset, time in enumerate(FLAT) if time is not None and time >= at), len(FLAT))


@pytest.fixture
def context(sources: Sources) -> BundleContext:
    return bundle_context(MemoryStore("times", sources), sources)


async def compact(context: BundleContext) -> None:
    engine = LocalEngine(context.sources, run_inline)
    assert await compact_bundle(
        Compaction(context.store, context.cluster, context.sources, engine), 1, context.catalog(), everything=True
    )


async def check(owner: BundleOwner) -> None:
    assert [await owner.list_offset(TOPIC, 0, at) for at in range(70)] == [expected(at) for at in range(70)]


@pytest.mark.parametrize("in_parquet", [[], [4], [1], [0, 2, 4], [0, 1, 2, 3, 4]])
async def test_the_lowest_offset_at_or_after_a_time(context: BundleContext, in_parquet: list[int]) -> None:
    async with opened(context) as owner:
        for i, times in enumerate(TIMES):
            await produce(owner, timed(*times))
            if i in in_parquet:
                await compact(context)
        await check(owner)
    async with opened(context) as owner:
        await check(owner)


async def test_an_empty_partition_has_only_its_end(context: BundleContext) -> None:
    async with opened(context) as owner:
        assert await owner.list_offset(TOPIC, 0, 0) == 0


async def test_times_that_the_producer_misstated_are_found_in_the_rows(context: BundleContext) -> None:
    async with opened(context) as owner:
        lie = timed(10, 20)
        await produce(owner, Batch(TOPIC_ID, 0, 2, lie.crc, 10, 10**9, lie.data), timed(50))
        assert await owner.list_offset(TOPIC, 0, 30) == 2
        assert await owner.list_offset(TOPIC, 0, 51) == 3


def test_an_undecodable_batch_counts_from_its_first_record_on() -> None:
    data = bytearray(batch(b"a", b"b").data)
    assert first_row_at(bytes(data[:-8]), 5, 0) == 0
    assert first_row_at(b"garbage", 5, 3) == 3


async def test_a_time_in_parquet_is_found_in_the_times_of_one_row_group(sources: Sources) -> None:
    """Of the whole file the row group that may hold it, and of that nothing but the times."""
    store = CountingStore(MemoryStore("times", sources))
    async with opened(bundle_context(store, sources)) as owner:
        for hundred in range(10):
            values = [sources.random.randbytes(500) for _ in range(100)]
            await produce(owner, timed(*range(100 * hundred, 100 * (hundred + 1)), values=values))
        await compact(owner._context)
        await owner._ledger.view.look()
        [file] = await owner._ledger.reader.parquet_files(PartitionId(TOPIC_ID, 0), 0)
    async with opened(bundle_context(store, sources)) as owner:
        store.ranges.clear()
        assert [await owner.list_offset(TOPIC, 0, at) for at in (555, 999, 1000)] == [555, 999, 1000]
        read = sum(length for key, length in store.ranges if key == file.key)
        assert 0 < read < file.size / 50, (read, file.size)


async def test_parquet_that_is_ahead_of_the_acknowledgement_is_not_searched_above_the_end(sources: Sources) -> None:
    store = HeldAnswers(MemoryStore("held", sources))
    context = bundle_context(store, sources, NO_CACHE)
    async with opened(context) as owner:
        await produce(owner, timed(10))
        store.gate.clear()
        second = asyncio.create_task(produce(owner, timed(20)))
        while len(await segments(store)) < 3:
            await asyncio.sleep(0)
        await compact(context)
        await owner._ledger.view.look()
        assert await owner.list_offset(TOPIC, 0, 20) == 1, "the end, as if there were no such record"
        assert await owner._ledger.reader.offset_at(PartitionId(TOPIC_ID, 0), 20, TOPIC) is None
        store.gate.set()
        assert await second == [1]
        assert await owner._ledger.reader.offset_at(PartitionId(TOPIC_ID, 0), 20, TOPIC) == 1

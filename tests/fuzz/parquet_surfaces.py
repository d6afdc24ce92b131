"""What Parquet compaction leaves in the bucket: plans, file pages, Parquet files."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq

from ledgermq.protocol.batches.records import decode_batch
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.sweep import find_garbage
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.envelope import ObjectKind, seal, unseal
from ledgermq_ledger.log.chains.plans import decode_plan
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compacting.task import split_plan
from ledgermq_ledger.parquet.files.columns import FooterNote, ParquetBuilder, note_of_file
from ledgermq_ledger.parquet.files.stored_file import describe, parse_footer, read_footer
from ledgermq_ledger.parquet.merging.merged_list import decode_list, encode_list, standing
from ledgermq_ledger.parquet.merging.names import MergedName
from ledgermq_ledger.parquet.pages import PageReader, decode_page
from ledgermq_ledger.parquet.reader import ParquetCache
from tests.fuzz.mutation import mutate_sealed
from tests.fuzz.surface import Surface, Untyped
from tests.fuzz.wire_surfaces import DECODED_BYTES_MAX, batch_seeds, spoil_batch
from tests.stores.backends import seeded_sources
from tests.worlds.batches import mutate
from tests.worlds.roots import Root

_runner = asyncio.Runner()


async def _filled() -> tuple[Root, dict[str, bytes]]:
    sources = seeded_sources()
    store = MemoryStore("parquet", sources)
    root = await Root.open(store, sources)
    await root.create_topic("flights")
    for part in (b"a", b"b"):
        await root.produce("flights", (0, [part * 10] * 20))
        await root.compact()
    return root, {info.key: await store.get(info.key) async for info in store.list("")}


@cache
def filled() -> tuple[Root, dict[str, bytes]]:
    return _runner.run(_filled())


def find(prefix: str) -> tuple[str, bytes]:
    key = max(key for key in filled()[1] if key.startswith(prefix))
    return key, filled()[1][key]


async def _store_with(key: str, data: bytes) -> MemoryStore:
    store = MemoryStore("fuzz", seeded_sources())
    for name, content in {**filled()[1], key: data}.items():
        await store.put(name, content)
    return store


# Parquet files: the footer, and a row group behind it.


def spoil_parquet(rng: random.Random, data: bytes) -> bytes:
    footer = int.from_bytes(data[-8:-4], "little") + 8
    tail = rng.choice((8, footer, footer, len(data)))
    edited = mutate(rng, data[-tail:], data)
    if rng.random() < 0.7 and tail == footer:  # the footer's length fits, so that pyarrow parses it
        edited = edited[:-8] + max(0, len(edited) - 8).to_bytes(4, "little") + b"PAR1"
    return data[:-tail] + edited


async def _read_parquet(data: bytes) -> None:
    key, _ = find(keys.PARQUET)
    store = await _store_with(key, data)
    footer = await read_footer(store, key)
    valid = FooterNote.decode(pq.read_metadata(pa.BufferReader(find(keys.PARQUET)[1])).metadata)
    assert valid is not None
    describe(footer, key, len(data), valid)
    name = keys.parse_parquet(key)
    assert name is not None
    cache_of_rows = ParquetCache(store, run_inline)
    group = await cache_of_rows.row_group(key, name.first_offset, name.first_offset)
    await cache_of_rows.encode(group, name.first_offset, 1 << 20, name.last_offset + 1, "none")


def check_parquet(data: bytes) -> None:
    _runner.run(_read_parquet(data))


# Record batches on their way into Parquet: whatever an owner takes can be compacted, and comes out
# as it went in.


def check_compaction(data: bytes) -> None:
    batch = decode_batch(data, DECODED_BYTES_MAX)
    name = keys.ParquetName("flights", 0, 5, 4 + batch.num_rows, 1, 1)
    file = fmt.PlannedFile(
        topic_id=1, topic="flights", first_offset=5, last_offset=name.last_offset, key=name.key, bloom_columns=["key"]
    )
    builder = ParquetBuilder(file)
    builder.add(batch, 5)
    written = bytes(
        builder.finish(note_of_file(file, fmt.CompactionPlan(bundle=1, number=1, put_id=b"p" * 16), "cluster"))
    )
    if parse_footer(written, name.key).num_rows != batch.num_rows:
        raise Untyped("a Parquet file has another number of rows than its batch")
    table = pq.read_table(pa.BufferReader(written))
    for column in ("key", "value", "timestamp", "timestampType", "headers", "tag"):
        if not table.column(column).combine_chunks().equals(batch.column(column)):
            raise Untyped(f"column {column} comes out of Parquet as another")


# Plans and pages.


@cache
def plan() -> tuple[str, fmt.CompactionPlan, bytes]:
    """A plan is deleted when its slots are: one as it would have been."""
    whole = fmt.CompactionPlan(
        bundle=1, number=3, put_id=b"p" * 16, created_ms=5, checkpoint=6, last_slot=40, trim_slot=41
    )
    whole.slots.add(slot=34, put_id=b"s" * 16, kind=fmt.DATA, tail_length=99)
    name = keys.ParquetName("flights", 0, 40, 59, 1, 3)
    whole.files.add(
        topic_id=1,
        topic="flights",
        partition=0,
        first_offset=40,
        last_offset=59,
        key=name.key,
        slots=[34],
        source_bytes=5,
    )
    whole.internal.add(topic_id=0, topic="__metadata", end=4, slots=[34])
    return keys.compaction(1, 3), whole, seal(ObjectKind.COMPACTION_PLAN, whole)


async def _use_plan(data: bytes) -> None:
    key, _, _ = plan()
    decoded = decode_plan(data, key)
    root, _ = filled()
    split_plan(decoded, "memory://x", root.cluster, parallel=2)
    await find_garbage(await _store_with(key, data), root.cluster)


def check_plan(data: bytes) -> None:
    _runner.run(_use_plan(data))


async def _use_page(data: bytes) -> None:
    key, _ = find(keys.file_pages(1))
    decode_page(data, key)
    checkpoint = await filled()[0].newest()
    pages = PageReader(await _store_with(key, data), 1)
    for counters in checkpoint.partitions:
        if counters.newest_page:
            await pages.files_from(counters, 0)
            await pages.chain(counters)


def check_page(data: bytes) -> None:
    _runner.run(_use_page(data))


_MERGED = MergedName(PartitionId(7, 1), 3, b"m" * 16)


def merged_list() -> fmt.MergedList:
    spans = [(0, 9), (10, 29)]
    files = [
        fmt.ParquetFile(key=replace(_MERGED, offsets=span).key, first_offset=span[0], last_offset=span[1])
        for span in spans
    ]
    return fmt.MergedList(topic_id=7, partition=1, number=3, put_id=b"m" * 16, files=files)


def check_merged_list(data: bytes) -> None:
    listed = decode_list(data, _MERGED.key)
    standing(listed.files, fmt.PartitionCheckpoint(parquet_start=5, parquet_end=100))


def surfaces() -> list[Surface]:
    page_key, page_data = find(keys.file_pages(1))
    page = unseal(ObjectKind.FILE_PAGE, fmt.FilePage(), page_data, page_key)
    _, whole, plan_data = plan()
    return [
        Surface("parquet-file", [find(keys.PARQUET)[1]], check_parquet, spoil_parquet, weight=4),
        Surface("compaction", batch_seeds(), check_compaction, spoil_batch, weight=2),
        Surface(
            "plan",
            [plan_data],
            check_plan,
            lambda rng, data: mutate_sealed(rng, ObjectKind.COMPACTION_PLAN, whole, data),
        ),
        Surface(
            "merged-list",
            [encode_list(merged_list())],
            check_merged_list,
            lambda rng, data: mutate_sealed(rng, ObjectKind.MERGED_LIST, merged_list(), data),
        ),
        Surface(
            "file-page", [page_data], check_page, lambda rng, data: mutate_sealed(rng, ObjectKind.FILE_PAGE, page, data)
        ),
    ]

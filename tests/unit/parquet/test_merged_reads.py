"""Readers take merged files in the place of small ones, and small ones where a merged one is gone."""

import asyncio
import random

import pytest

from ledgermq.protocol.batches.records import decode_batch
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.keyed.reader import KeyedReader
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.files import row_group
from ledgermq_ledger.parquet.merging import merged_list
from ledgermq_ledger.parquet.merging.merged_list import MergedReader
from ledgermq_ledger.parquet.reader import ParquetCache, read_parquet
from ledgermq_ledger.view.find import Finder, KeySearch
from ledgermq_ledger.view.ranges.range_read import RangeReader, plan_ranges
from tests.stores.requests_made import Requests
from tests.virtual_time import virtual
from tests.worlds.merged_files import (
    a_root,
    check_all,
    counters_of,
    damage,
    make_file,
    merged_keys,
    read_all,
    spans,
)
from tests.worlds.reading import opened_ledger

# What readers do.


@virtual
async def test_a_reader_of_old_records_opens_merged_files() -> None:
    root = await a_root(12)
    wholes = []
    for merges in (True, False):
        store, checkpoint = Requests(root.store), await root.newest()
        if not merges:
            for part in checkpoint.partitions:
                part.ClearField("merged")
        cache, offset, values = ParquetCache(store, run_inline), 0, list[bytes]()
        while offset < 24:
            for found in await read_parquet(store, 1, checkpoint, root.topics["t"].id, 0, offset, 10**7, cache=cache):
                values += decode_batch(found.data).column("value").to_pylist()
                offset += found.record_count
        assert values == root.produced["t", 0]
        wholes.append(store.made["get_suffix", "merged"] + store.made["get_suffix", "parquet"])
    assert wholes == [4, 12]


@virtual
async def test_the_source_of_spark_reads_a_merged_file_as_one_range() -> None:
    root = await a_root(8)
    ledger = await opened_ledger(root.store)
    place = keys.PartitionId(root.topics["t"].id, 0)
    [ranges] = (await plan_ranges(ledger.reader, {place: (1, 15)})).values()
    assert [(each.first, each.end) for each in ranges] == [(1, 6), (6, 12), (12, 14), (14, 15)]
    store = Requests(root.store)
    for is_lost in (False, True):
        if is_lost:
            for key in await merged_keys(root):
                await root.store.delete([key])
        reader = RangeReader(store, run_inline)
        values = [
            value
            for each in ranges
            async for _, rows in reader.read(each)
            for value in rows.column("value").to_pylist()
        ]
        assert values == root.produced["t", 0][1:15], "also where the files went since it was planned"
        assert store.made["get_range", "merged"] == (0 if is_lost else 2)
        store.made.clear()


@virtual
async def test_a_key_is_looked_up_in_merged_files() -> None:
    root = await a_root(6)
    ledger, store = await opened_ledger(root.store), Requests(root.store)
    finder = Finder(
        ledger.reader, store, ParquetCache(store, run_inline), KeyedReader(store), asyncio.Semaphore(2), run_inline
    )
    place = keys.PartitionId(root.topics["t"].id, 0)
    wanted = KeySearch(place, b"nowhere", 0, 12, True, 5, 1 << 20, 1 << 20, 1e9)
    assert (await finder.search(wanted, root.topics["t"])).records == []
    assert store.made["get_suffix", "merged"] == 2
    assert store.made["get_suffix", "parquet"] == 0


@pytest.mark.parametrize("lost", ["file", "list"])
@virtual
async def test_where_a_merged_file_is_gone_the_small_ones_are_read(lost: str) -> None:
    root = await a_root(6)
    [key, *_] = [key for key in await merged_keys(root) if f"/{lost}s/" in key]
    await root.store.delete([key])
    assert await read_all(root) == root.produced["t", 0]
    assert await damage(root) == [("MERGED_FILE_MISSING", key)]
    for _ in range(3):
        await make_file(root)
    if lost == "list":
        assert await spans(root) == [(0, 5), (6, 11), (12, 17)], "the next list begins anew"
        await check_all(root)


@virtual
async def test_a_damaged_merged_file_is_reported_and_the_small_ones_are_read() -> None:
    root = await a_root(3)
    store = root.store
    assert isinstance(store, MemoryStore)
    [key] = [key for key in await merged_keys(root) if "/files/" in key]
    data = bytearray(await store.get(key))
    data[40] ^= 1
    await store.put(key, bytes(data))
    assert [code for code, _ in await damage(root)] == ["DATA_DAMAGED"]
    assert await read_all(root) == root.produced["t", 0]


@pytest.mark.parametrize("damaged", [0.0, 0.8], ids=["first", "middle"])
@virtual
async def test_a_query_goes_on_in_the_small_files_where_a_merged_one_is_damaged(
    damaged: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come while the rest is decoded, so the damage shows when the first of them have been read."""
    monkeypatch.setattr(row_group, "PIECE_BYTES", 100_000)
    root = await a_root()
    dice = random.Random(1)
    for _ in range(3):
        await make_file(root, values=[dice.randbytes(1000) for _ in range(1500)])
    store = root.store
    assert isinstance(store, MemoryStore)
    [key] = [key for key in await merged_keys(root) if "/files/" in key]
    data = bytearray(await store.get(key))
    data[40 + int(damaged * len(data))] ^= 1
    await store.put(key, bytes(data))
    ledger, made = await opened_ledger(root.store), Requests(root.store)
    place = keys.PartitionId(root.topics["t"].id, 0)
    [ranges] = (await plan_ranges(ledger.reader, {place: (0, 4500)})).values()
    reader = RangeReader(made, run_inline)
    for _ in range(2):
        found = [
            (first + row, value)
            for each in ranges
            async for first, rows in reader.read(each)
            for row, value in enumerate(rows.column("value").to_pylist())
        ]
        assert found == list(enumerate(root.produced["t", 0])), "each row once"
    assert made.made["get_suffix", "merged"] == 1, "it is tried once"
    small = 6 if damaged == 0.0 else 5
    assert made.made["get_range", "parquet"] == small, "of the first small file nothing was left to read"


class Slow(Requests):
    async def get(self, key: str) -> bytes:
        await asyncio.sleep(1)
        return await super().get(key)


@virtual
async def test_a_reader_keeps_lists_up_to_so_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_list, "FILES_MAX", 3)
    root = await a_root(6)
    await root.create_topic("u", parquet_merge_files="3")
    for _ in range(6):
        await make_file(root, "u")
    store = Slow(root.store)
    reader, parts = MergedReader(store), [await counters_of(root, name) for name in ("t", "u")]
    for counters, gets in zip([parts[0], parts[0], parts[1], parts[1], parts[0]], (1, 1, 2, 2, 3), strict=True):
        assert await reader.at(counters, 0) is not None
        assert store.made["get", "merged"] == gets
    monkeypatch.setattr(merged_list, "FILES_MAX", 1)
    assert None not in await asyncio.gather(reader.at(parts[1], 0), reader.at(parts[1], 0))
    assert await reader.at(parts[1], 0) is not None
    assert store.made["get", "merged"] == 5, "the newest stays, however long it is"
    monkeypatch.setattr(merged_list, "FILES_MAX", 4)
    for counters in (parts[0], parts[1], parts[0]):
        assert await reader.at(counters, 0) is not None
    assert store.made["get", "merged"] == 6, "two that fit stay, though one was read twice at once"


@virtual
async def test_a_reader_keeps_lists_that_cannot_be_read_for_nothing() -> None:
    root = await a_root(3)
    counters, store = await counters_of(root), Requests(root.store)
    for key in await merged_keys(root):
        await root.store.delete([key])
    reader = MergedReader(store)
    assert [await reader.at(counters, offset) for offset in (0, 5)] == [None, None]
    assert store.made["get", "merged"] == 1

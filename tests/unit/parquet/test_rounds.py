"""Whole rounds on a memory store and on files: what was produced is in Parquet once, and what is not needed is gone."""

from __future__ import annotations

from pathlib import Path

from ledger import keys
from ledger.parquet.engine import LocalEngine
from ledger.parquet.runner import compact_root
from ledgermq.sources import Sources
from tests.roots import Root, parquet_keys, read_everything, read_parquet_rows
from tests.stores import file_store, memory_store


async def test_everything_is_in_parquet_after_a_run_by_hand(sources: Sources) -> None:
    async with memory_store() as store:
        root = await Root.open(store, sources)
        await root.create_topic("flights", partitions=3)
        await root.create_topic("123")
        for i in range(5):
            await root.produce("flights", (0, [b"a%d" % i]), (2, [b"b%d" % i, b"c%d" % i]))
            await root.produce("123", (0, [b"n%d" % i]))
        report = await root.compact()
        assert not report.failures
        assert report.records == 20
        rows = await read_parquet_rows(store)
        assert {part: list(found.values()) for part, found in rows.items()} == root.produced
        segments = [info.key async for info in store.list(keys.segments(1))]
        assert segments == [keys.segment(1, 1)], "only the claim is kept"
        assert [info.key async for info in store.list(keys.compactions(1))] == []
        assert list(await store.list_fences()) == []
        assert (await root.compact()).rounds == []


async def test_rounds_go_on_from_each_other_on_files(tmp_path: Path) -> None:
    async with file_store(tmp_path) as store:
        sources = Sources()
        root = await Root.open(store, sources)
        await root.create_topic("flights", partitions=2)
        for i in range(6):
            await root.produce("flights", (i % 2, [b"%d-%d" % (i, j) for j in range(10)]))
            report = await compact_root(store, sources, LocalEngine(sources))
            assert not report.failures
            assert report.records == 10
        assert await read_everything(root) == root.produced
        assert len(await parquet_keys(store)) == 6

"""Whole rounds on a memory store and on files: what was produced is in Parquet once, and what is
not needed is gone.
"""

from __future__ import annotations

from pathlib import Path

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.sweep import tidy_segments
from ledgermq_ledger.log.chains.plans import put_plan, read_plan
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.internal_topic import read_internal
from ledgermq_ledger.parquet.compacting.plan import make_plan
from ledgermq_ledger.parquet.compacting.round import run_round
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from tests.stores.backends import file_store, memory_store
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, parquet_keys, read_everything, read_parquet_rows


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


async def test_a_snapshot_keeps_what_a_round_did_not_touch(sources: Sources) -> None:
    async with memory_store() as store:
        root = await Root.open(store, sources)
        offsets = await root.create_topic("__consumer_offsets", partitions=2)
        for partition in (0, 1):
            await root.put_internal(offsets, b"a", b"%d" % partition, partition)
            await root.put_internal(offsets, b"b", b"gone", partition)
            await root.put_internal(offsets, b"b", None, partition)
        await root.compact()
        await root.put_internal(offsets, b"c", b"new", 1)
        await root.compact()
        await root.put_internal(offsets, b"d", b"tail", 1)
        history = await read_history(ledger_of(store, 1))
        assert history.checkpoint.snapshot_plan == 2
        first = await read_internal(store, history, offsets.id, 0)
        assert [(r.offset, r.key, r.value) for r in first] == [(0, b"a", b"0")]
        second = await read_internal(store, history, offsets.id, 1)
        assert [(r.offset, r.key, r.value) for r in second] == [(0, b"a", b"1"), (3, b"c", b"new"), (4, b"d", b"tail")]
        assert [info.key async for info in store.list(keys.snapshots(1))] == [keys.snapshot(1, 2)]
        assert await parquet_keys(store) == [], "internal topics never go to parquet/"


async def test_an_open_plan_without_slots_is_kept_until_it_is_finished(sources: Sources) -> None:
    async with memory_store() as store:
        root = await Root.open(store, sources)
        history = await read_history(ledger_of(store, 1))
        plan = make_plan(
            history, await root.catalog(), everything=False, barrier=True, now_ms=0, put_id=sources.new_id()
        )
        assert plan is not None
        assert await put_plan(store, plan, sources)
        await tidy_segments(store, 1)
        assert await read_plan(store, 1, 1) is not None
        done = await run_round(
            Compaction(store, root.cluster, sources, LocalEngine(sources)),
            1,
            await root.catalog(),
            everything=False,
            barrier=True,
        )
        assert done is not None
        assert done.plan == 1
        await tidy_segments(store, 1)
        assert await read_plan(store, 1, 1) is None

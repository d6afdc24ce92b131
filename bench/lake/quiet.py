"""Many quiet topics: how many files a day makes, what its rounds cost, and how long a count over a month takes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable

from bench.lake.busy import BEGUN_US, Clock
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.log.segments.indexes import SegmentIndexes
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_bundle, compact_root
from ledgermq_ledger.tables.registrar import Registrar
from tests.worlds.ledgers import append_and_wait, batch
from tests.worlds.roots import Root
from tests.worlds.set_tables import set_table

MINUTE_US = 60_000_000
ROUND_EVERY_MINUTES = 60


async def a_day(topics: int, minutes: int = 24 * 60) -> dict[str, Any]:
    """A record a minute for each topic, and rounds as they are due."""
    clock = Clock()
    sources = Sources(clock)
    async with MemoryStore("quiet", sources) as store:  # dates of files are the machine's
        root = await Root.open(store, sources)
        names = [await root.create_topic(f"q{number}") for number in range(topics)]
        writer, used_s = await root.writer(1), 0.0
        engine = LocalEngine(sources, run_inline, tasks_at_once=1)
        compaction = Compaction(store, root.cluster, sources, engine, SegmentIndexes())
        for minute in range(minutes + 1):
            clock.now_us = BEGUN_US + minute * MINUTE_US
            value = b'{"n": %d, "text": "a quiet topic"}' % minute
            now_ms = clock.now_us // 1000
            await append_and_wait(writer, *(batch(value, topic_id=each.id, timestamp_ms=now_ms) for each in names))
            if minute % ROUND_EVERY_MINUTES == 0:
                begun_s = time.process_time()
                await compact_bundle(compaction, 1, await root.catalog(), everything=False)
                used_s += time.process_time() - begun_s
        files = [info.key async for info in store.list(keys.PARQUET)]
    return {
        "row": "200 quiet topics, a day",
        "topics": topics,
        "minutes": minutes,
        "files": len(files),
        "cpu_s": round(used_s, 2),
    }


async def fill_a_month(folder: Path, topics: int, days: int, records: int) -> None:
    """A file a day for each topic, and a table over them. `records`: of a topic and day."""
    clock = Clock()
    sources = Sources(clock)
    async with FileStore(folder, sources) as store:
        root = await Root.open(store, sources)
        for number in range(topics):
            await root.create_topic(f"q{number}")
            await set_table(root, 1, topic=f"q{number}")
        writer, engine = await root.writer(1), LocalEngine(sources, run_inline, tasks_at_once=1)
        for day in range(days):
            clock.now_us = BEGUN_US + day * 24 * 60 * MINUTE_US
            values, now_ms = [b'{"n": %d}' % n for n in range(records)], clock.now_us // 1000
            ids = [topic.id for topic in root.topics.values()]
            await append_and_wait(writer, *(batch(*values, topic_id=each, timestamp_ms=now_ms) for each in ids))
            assert not (await compact_root(store, sources, engine)).failures
        for topic in root.topics.values():
            await Registrar(store, root.cluster, topic, sources).catch_up()


def count_a_month(folder: Path, topics: int) -> dict[str, Any]:
    """Count the rows of each table by a scan that polars plans over delta-rs's list of files."""
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    rows = files = 0
    for number in range(topics):
        table = DeltaTable(folder / keys.parquet_topic(f"q{number}"))
        files += len(table.file_uris())
        rows += pl.scan_delta(table).select(pl.len()).collect().item()
    return {
        "row": "count over all quiet topics, a month, through the tables",
        "topics": topics,
        "files": files,
        "rows": rows,
        "wall_s": round(time.perf_counter() - begun_s, 2),
        "cpu_s": round(time.process_time() - cpu_s, 2),
    }

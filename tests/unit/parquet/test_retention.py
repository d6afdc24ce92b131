"""Retention moves log starts by whole files, and deleting follows in ascending order once
everything is old enough.
"""

from __future__ import annotations

from ledgermq.sources import Sources
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.topics.retention import apply as apply_retention
from ledgermq_ledger.garbage.topics.retention import log_start_by_retention
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.topics.settings import TopicSettings
from tests.stores.backends import memory_store
from tests.unit.parquet.test_gc import Clock
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, parquet_keys, read_parquet_rows

FILES = [
    fmt.ParquetFile(
        first_offset=10 * i, last_offset=10 * i + 9, size=100, timestamp_max_us=1_000_000 * i, committed_ms=50_000
    )
    for i in range(1, 6)
]


def test_by_age() -> None:
    assert log_start_by_retention(FILES, TopicSettings(retention_ms=-1), now_ms=10**9) == 0
    assert log_start_by_retention(FILES, TopicSettings(retention_ms=2000), now_ms=3000) == 0
    assert log_start_by_retention(FILES, TopicSettings(retention_ms=2000), now_ms=3001) == 20
    assert log_start_by_retention(FILES, TopicSettings(retention_ms=2000), now_ms=5001) == 40
    assert log_start_by_retention(FILES, TopicSettings(retention_ms=0), now_ms=10**9) == 60


def test_by_bytes() -> None:
    assert log_start_by_retention(FILES, TopicSettings(retention_bytes=500), now_ms=0) == 0
    assert log_start_by_retention(FILES, TopicSettings(retention_bytes=499), now_ms=0) == 20
    assert log_start_by_retention(FILES, TopicSettings(retention_bytes=0), now_ms=0) == 60


def test_one_young_file_keeps_all_behind_it() -> None:
    files = [FILES[4], FILES[0], FILES[1]]
    assert log_start_by_retention(files, TopicSettings(retention_ms=1000), now_ms=5500) == 0


def test_without_timestamps_the_plan_dates_the_file() -> None:
    files = [fmt.ParquetFile(first_offset=0, last_offset=9, committed_ms=5000)]
    assert log_start_by_retention(files, TopicSettings(retention_ms=1000), now_ms=6000) == 0
    assert log_start_by_retention(files, TopicSettings(retention_ms=1000), now_ms=6001) == 10


async def test_old_files_go_and_the_rest_is_a_run(sources: Sources) -> None:
    clock = Clock()
    sources = Sources(clock, sources.random)
    async with memory_store(sources) as store:
        root = await Root.open(store, sources)
        topic = await root.create_topic("t", retention_ms="50000")
        await root.create_topic("kept")
        for i in range(6):
            await root.produce("t", (0, [b"%d" % i] * 3), timestamp_ms=clock.now_us // 1000)
            await root.produce("kept", (0, [b"k%d" % i]))
            assert not (await root.compact()).failures
            clock.now_us += 20_000_000
            rows = await read_parquet_rows(store)
            assert len(rows["kept", 0]) == i + 1
            start = partition_of(await root.newest(), topic.id, 0).log_start
            assert min(rows["t", 0]) <= start
            assert max(rows["t", 0]) == 3 * i + 2
        counters = partition_of(await root.newest(), topic.id, 0)
        assert (counters.log_start, counters.parquet_start, counters.parquet_end) == (9, 9, 18)
        assert len([key for key in await parquet_keys(store) if "topic=t/" in key]) == 3
        clock.now_us += 10**9
        await root.compact()
        clock.now_us += 10**9
        await root.compact()
        counters = partition_of(await root.newest(), topic.id, 0)
        assert (counters.log_start, counters.parquet_start, counters.parquet_end) == (18, 18, 18)
        await root.produce("t", (0, [b"new"]), timestamp_ms=clock.now_us // 1000)
        await root.compact()
        assert (await read_parquet_rows(store))["t", 0] == {18: b"new"}


DAY_MS = 24 * 60 * 60 * 1000


class _AskedForTime(StoreWrapper):
    asked = 0

    async def store_time_ms(self) -> int:
        self.asked += 1
        return await self.inner.store_time_ms()


async def test_a_clock_that_is_ahead_takes_no_fresh_records(sources: Sources) -> None:
    """A log start never goes back, so no single machine may say what time it is."""
    clock = Clock()
    sources = Sources(clock, sources.random)
    ahead = Sources(lambda: clock() + 10 * DAY_MS * 1000, sources.random)
    async with memory_store(sources) as store:
        root = await Root.open(store, sources)
        topic = await root.create_topic("t", retention_ms=str(7 * DAY_MS))
        await root.produce("t", (0, [b"fresh"]), timestamp_ms=clock.now_us // 1000)
        assert not (await root.compact(sources=ahead)).failures
        assert partition_of(await root.newest(), topic.id, 0).log_start == 0
        clock.now_us += (7 * DAY_MS + 1) * 1000
        assert not (await root.compact(sources=ahead)).failures
        assert partition_of(await root.newest(), topic.id, 0).log_start == 1


async def test_the_store_is_asked_for_its_time_only_when_something_would_go(sources: Sources) -> None:
    clock = Clock()
    sources = Sources(clock, sources.random)
    async with memory_store(sources) as store:
        root = await Root.open(store, sources)
        await root.create_topic("t", retention_ms=str(7 * DAY_MS))
        await root.produce("t", (0, [b"fresh"]), timestamp_ms=clock.now_us // 1000)
        assert not (await root.compact()).failures
        asked = _AskedForTime(store)
        await apply_retention(ledger_of(asked, 1, cluster=root.cluster, sources=sources), await root.catalog())
        assert asked.asked == 0
        clock.now_us += (7 * DAY_MS + 1) * 1000
        await apply_retention(ledger_of(asked, 1, cluster=root.cluster, sources=sources), await root.catalog())
        assert asked.asked == 1

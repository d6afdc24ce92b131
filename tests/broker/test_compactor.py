"""The compaction service follows topic settings, runs beside brokers, and survives faults; in
virtual time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from ledgermq.errors import StoreUnusable
from ledgermq_broker.bundle.shared.background_rounds import BackgroundRounds
from ledgermq_broker.bundle.shared.context import BundleMetrics
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.report import RoundReport
from ledgermq_ledger.rounds.service import CompactionService
from ledgermq_tools.broker.compactor import LoggedEvents
from tests.broker.cluster import Cluster, cluster_of
from tests.stores.faulty import Faults, FaultyStore
from tests.virtual_time import virtual, virtual_sources
from tests.waiting import until


class SlowFences(StoreWrapper):
    """Rounds of compaction stand still before they open their fence, until `go_on` is set."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked = 0
        self.go_on = asyncio.Event()

    async def open_fence(self, fence: str) -> None:
        self.asked += 1
        await self.go_on.wait()
        await super().open_fence(fence)


class Heard(BundleMetrics):
    def __init__(self) -> None:
        self.records = 0
        self.failures: Counter[int] = Counter()

    def compacted(self, report: RoundReport) -> None:
        self.records += report.records

    def upkeep_failed(self, bundle: int, work: str, error: BaseException) -> None:
        self.failures[bundle] += 1


def compactor_of(cluster: Cluster, heard: Heard, store: FaultyStore | None = None) -> CompactionService:
    sources = virtual_sources(50)
    settings = next(iter(cluster.brokers.values())).context.cluster
    engine = LocalEngine(sources, run_inline)
    return CompactionService(store or cluster.store, settings, sources, engine, LoggedEvents(heard))


def said(caplog: pytest.LogCaptureFixture) -> list[object]:
    """Return what was logged, without values."""
    return [record.msg for record in caplog.records]


async def parquet_files(cluster: Cluster) -> list[str]:
    return [info.key async for info in cluster.store.list(keys.PARQUET)]


@virtual
async def test_records_become_parquet_when_their_topic_says_so() -> None:
    heard = Heard()
    async with cluster_of("a:1") as cluster:
        await cluster.create("soon", 2, parquet_max_lag_ms="60000")
        await cluster.create("late", 2, parquet_max_lag_ms="86400000")
        for name in ("soon", "late"):
            await cluster.produce(name, 0, b"1", b"2", b"3")
        working = asyncio.create_task(compactor_of(cluster, heard).run(lambda: 10.0))
        await asyncio.sleep(30)
        assert await parquet_files(cluster) == []
        await asyncio.sleep(60)
        files = await parquet_files(cluster)
        assert [file.split("/")[1] for file in files] == ["topic=soon"]
        assert heard.records == 3
        assert await cluster.read_all("soon", 0) == await cluster.read_all("late", 0) == [b"1", b"2", b"3"]
        working.cancel()
        await asyncio.wait([working])
    assert not heard.failures


@virtual
async def test_a_store_that_is_away_stops_no_compaction_service() -> None:
    heard = Heard()
    async with cluster_of("a:1", store=MemoryStore("", virtual_sources(9))) as cluster:
        await cluster.create("t", 1, parquet_max_lag_ms="0")
        await cluster.produce("t", 0, b"1")
        store = FaultyStore(cluster.store, virtual_sources(8), Faults(before=1.0))
        working = asyncio.create_task(compactor_of(cluster, heard, store).run(lambda: 10.0))
        await asyncio.sleep(60)
        assert heard.failures.total() >= 3
        assert not working.done()
        store.faults = Faults()
        await asyncio.sleep(30)
        assert heard.records == 1
        working.cancel()
        await asyncio.wait([working])


@virtual
async def test_background_compaction_may_be_switched_on_and_off_while_a_broker_runs() -> None:
    async with cluster_of("a:1") as cluster:  # it begins switched off
        await cluster.create("t", 1, parquet_max_lag_ms="0")
        await cluster.produce("t", 0, b"1")
        await asyncio.sleep(120)
        assert await parquet_files(cluster) == []
        broker = cluster.brokers["a:1"]
        broker.apply(cluster.settings.model_copy(update={"background_compaction": True}))
        await asyncio.sleep(30)
        assert len(await parquet_files(cluster)) == 1
        broker.apply(cluster.settings)
        await asyncio.sleep(30)
        await cluster.produce("t", 0, b"2")
        await asyncio.sleep(120)
        assert len(await parquet_files(cluster)) == 1
        assert await cluster.read_all("t", 0) == [b"1", b"2"]


@virtual
async def test_rest_is_told_when_the_round_that_was_under_way_is_over_and_none_begins_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "ledgermq_broker.bundle.shared.background_rounds"):
        store = SlowFences(MemoryStore("", virtual_sources(9)))
        async with cluster_of("a:1", store=store, background_compaction=True) as cluster:
            await cluster.create("t", 6, parquet_max_lag_ms="0")
            for partition in range(6):
                await cluster.produce("t", partition, b"1")
            await until(lambda: store.asked > 0)
            broker = cluster.brokers["a:1"]
            broker.apply(cluster.settings.model_copy(update={"background_compaction": False}))
            await asyncio.sleep(600)
            assert broker.context.background_rounds.under_way == 1
            assert "at rest" not in caplog.text
            store.go_on.set()
            await until(lambda: not broker.context.background_rounds.under_way)
            assert said(caplog).count("background compaction at rest") == 1
            found = await parquet_files(cluster)
            assert 1 <= len(found) < 6, "one bundle's: the others waited for their turn, and had none"
            await asyncio.sleep(600)
            assert await parquet_files(cluster) == found
            assert store.asked == 1
            broker.apply(cluster.settings)
            await asyncio.sleep(120)
            assert len(await parquet_files(cluster)) == 6


@virtual
async def test_a_broker_that_begins_with_compaction_off_says_that_it_is_at_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "ledgermq_broker.bundle.shared.background_rounds"):
        async with cluster_of("a:1") as cluster:
            await cluster.create("t", 1)
            await until(lambda: said(caplog).count("background compaction at rest") == 1)


@virtual
async def test_a_round_that_fails_is_not_begun_again_where_none_may_begin(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ledgermq_broker.bundle.shared.background_rounds"):
        rounds, begun = BackgroundRounds(allowed=True), []

        async def fail() -> None:
            begun.append(rounds.under_way)
            rounds.allow(False)
            raise StoreUnusable("away")

        with pytest.raises(StoreUnusable):
            await rounds.run(fail)
        await rounds.run(fail)
        rounds.allow(False)
        assert begun == [1]
        assert not rounds.under_way
        assert said(caplog) == ["background compaction at rest"]

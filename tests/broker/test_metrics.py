"""The metrics of a running broker, in virtual time: every hook is wired, and scraped values equal
the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.costs.racks import RackTraffic
from ledgermq_broker.metrics.owner_metrics import OwnerMetrics
from ledgermq_broker.metrics.scrape import BrokerCollector
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from tests.broker.cluster import Cluster, fetch_of, frame_of
from tests.virtual_time import virtual_in, virtual_sources
from tests.waiting import until

ME = "m:1"


class Measured:
    """The broker at ME, and its reported metrics."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.registry = CollectorRegistry()
        self.owners = cluster.metrics[ME] = OwnerMetrics(self.registry, topics_max=2)
        self.registry.register(
            BrokerCollector(lambda: cluster.brokers.get(ME), self.owners.topics, StoreCosts(), RackTraffic())
        )

    def value(self, name: str, **labels: object) -> float | None:
        return self.registry.get_sample_value(
            f"ledgermq_{name}", {label: str(value) for label, value in labels.items()}
        )


@asynccontextmanager
async def measured_broker() -> AsyncIterator[Measured]:
    cluster = Cluster(MemoryStore("", virtual_sources(1000)), cache_bytes_max=500_000)
    try:
        found = Measured(cluster)
        assert found.value("owned_bundles") is None, "there is nothing to see before the broker is up"
        await cluster.start(ME)
        await cluster.settled()
        yield found
    finally:
        await cluster.close()


measured = virtual_in(measured_broker, "found")


@measured
async def test_produced_and_fetched_records_are_counted_by_topic_up_to_the_cap(found: Measured) -> None:
    for name in ("t", "u", "v"):
        await found.cluster.create(name, 2)
        await found.cluster.produce(name, 0, b"1", b"2")
    assert len(await found.cluster.read_all("t", 0)) == 2
    assert (found.value("produced_records_total", topic="t"), found.value("produced_batches_total", topic="t")) == (
        2,
        1,
    )
    assert found.value("fetched_records_total", topic="t") == 2
    assert found.value("fetched_bytes_total", topic="t") == found.value("produced_bytes_total", topic="t")
    own = [name for name in ("t", "u", "v") if found.value("produced_records_total", topic=name)]
    assert own == ["t"], "__metadata and t were first, and the cap is two"
    assert found.value("produced_records_total", topic="(other)") == 4


@measured
async def test_a_batch_that_waits_for_its_put_is_timed(found: Measured) -> None:
    """The first goes at once; those behind it wait for the put that is in flight, or for the
    spacing.
    """
    cluster = found.cluster
    await cluster.create("t", 1)
    before = found.value("group_commit_wait_seconds_count")
    cluster.brokers[ME].apply(cluster.settings.model_copy(update={"flush_spacing_ms": 1000}))
    cluster.views[ME].pause()
    waiting = []
    for i in range(3):
        waiting.append(asyncio.create_task(cluster.produce("t", 0, b"%d" % i)))
        await asyncio.sleep(0.2)
    cluster.views[ME].resume()
    await asyncio.gather(*waiting)
    assert before is not None
    assert found.value("group_commit_wait_seconds_count") == before + 2, "one alone, two together"
    waited_s = found.value("group_commit_wait_seconds_sum")
    assert waited_s is not None
    assert 0.3 <= waited_s <= 1.0


@measured
async def test_reads_are_counted_by_where_they_were_found(found: Measured) -> None:
    cluster = found.cluster
    await cluster.create("t", 1, parquet_max_lag_ms="0")
    for i in range(10):
        await cluster.produce("t", 0, bytes(100_000) + b"%d" % i)
    sources = ("cache", "segment", "parquet")
    line = cluster.line(ME)
    await line.fetch_once(fetch_of("t", 0, offset=9))
    assert [found.value("reads_total", source=source) for source in sources][1:] == [0, 0]
    await line.fetch_once(fetch_of("t", 0, offset=0))
    assert found.value("reads_total", source="segment") == 1, "the cache holds only the newest"
    await asyncio.sleep(5)
    lag, backlog = found.value("compaction_lag_seconds", bundle=1), found.value("compaction_backlog_bytes", bundle=1)
    assert lag is not None
    assert backlog is not None
    assert lag > 4
    assert backlog > 1_000_000
    engine = LocalEngine(virtual_sources(5), run_inline)
    await compact_root(cluster.store, virtual_sources(5), engine)
    await line.fetch_once(
        fetch_of("t", 0, offset=9)
    )  # an owner that serves a read looks for new checkpoints, now and then
    await until(lambda: found.value("compaction_lag_seconds", bundle=1) == 0)
    cluster.brokers[ME].apply(cluster.settings.model_copy(update={"cache_bytes_max": 0}))
    await line.fetch_once(fetch_of("t", 0, offset=0))
    assert found.value("reads_total", source="parquet") == 1


@measured
async def test_takeovers_fences_and_releases_are_counted(found: Measured) -> None:
    cluster = found.cluster
    assert (
        found.value("claims_total", outcome="won"),
        found.value("takeovers_total"),
        found.value("owned_bundles"),
    ) == (3, 0, 3)
    assert found.value("bundle_epoch", bundle=0) == 1
    await cluster.start("n:1")
    await until(lambda: len(cluster.brokers["n:1"].ownership.terms.opened) > 0)
    released = found.value("terms_ended_total", why="released")
    assert released == len(cluster.brokers["n:1"].ownership.terms.opened)
    assert found.value("live_brokers") == 2
    await cluster.stop("n:1", graceful=False)
    await cluster.settled()
    assert found.value("takeovers_total") == released
    cluster.views[ME].pause()
    await cluster.start("o:1")
    await until(lambda: len(cluster.brokers["o:1"].ownership.terms.opened) == 3)
    cluster.views[ME].resume()
    await until(lambda: found.value("terms_ended_total", why="fenced") == 3)


@measured
async def test_refusals_and_memory_show(found: Measured) -> None:
    cluster = found.cluster
    await cluster.create("t", 1)
    cluster.brokers[ME].apply(cluster.settings.model_copy(update={"produce_memory_bytes_max": 2**20}))
    cluster.views[ME].pause()
    waiting = [asyncio.create_task(cluster.line(ME).produce_once(frame_of("t", 0, bytes(400_000)))) for _ in range(3)]
    await asyncio.sleep(0.1)
    taken = found.value("produce_memory_bytes")
    assert taken is not None
    assert taken > 400_000
    assert found.value("produce_memory_bytes_max") == 2**20
    cluster.views[ME].resume()
    codes = [answer.results[0].error.code for answer in await asyncio.gather(*waiting)]
    assert found.value("produce_refused_total") == codes.count("RESOURCE_EXHAUSTED") > 0
    assert found.value("produce_memory_bytes") == 0


@measured
async def test_what_filters_leave_out_is_counted_by_topic_and_at_the_client(found: Measured) -> None:
    """Batches in memory and in segments, in the middle and at the end; the client counts the same messages."""
    cluster = found.cluster
    await cluster.create("t", 1, max_message_bytes="1000000")
    async with cluster.client() as client:
        async with client.producer() as producer:
            for tag in ("a", "b", "b", "a", "b"):
                for _ in range(10):
                    producer.send("t", bytes(20_000), tag=tag)
                await producer.flush()
        async with client.consumer("t", until_end=True, filter="a") as consumer:
            assert len([message async for message in consumer]) == 20
            counts = consumer.filter_counts
        assert (counts.by_brokers, counts.by_client, counts.batches, counts.messages) == (30, 0, 0, 30)
        assert found.value("filtered_batches_total", topic="t") == 3
        assert found.value("filtered_records_total", topic="t") == 30
        sent, left_out = found.value("fetched_bytes_total", topic="t"), found.value("filtered_bytes_total", topic="t")
        assert sent is not None
        assert left_out is not None
        assert sent + left_out == found.value("produced_bytes_total", topic="t")
        async with client.consumer("t", until_end=True, filter="TAGS = 'a'") as consumer:
            assert len([message async for message in consumer]) == 20
            counts = consumer.filter_counts
        assert (counts.by_brokers, counts.by_client, counts.batches) == (0, 30, 3)
        assert counts.batch_bytes == left_out, "conditions are judged by the client, which fetches in vain"
        assert found.value("filtered_batches_total", topic="t") == 3

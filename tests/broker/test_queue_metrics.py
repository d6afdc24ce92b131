"""What a broker counts about queue groups, and shows at each scrape."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.costs.racks import RackTraffic
from ledgermq_broker.metrics.features.queues import ShareMetrics
from ledgermq_broker.metrics.sampled.queue_ages import QueueAgeMetrics
from ledgermq_broker.metrics.scrape import BrokerCollector
from ledgermq_broker.metrics.topic_totals import TopicTotals
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.broker.queue_calls import TOPIC, answer, fetch
from tests.stores.faulty import FaultyStore
from tests.virtual_time import virtual, virtual_sources


@in_cluster()
async def test_leases_and_words_are_counted_and_what_is_left_is_shown(cluster: Cluster) -> None:
    registry = CollectorRegistry()
    cluster.counts["a:1"] = [ShareMetrics(registry)]
    broker = await cluster.start("a:1")
    await cluster.settled()
    registry.register(BrokerCollector(lambda: broker, TopicTotals(10), StoreCosts(), RackTraffic()))
    await cluster.create(TOPIC, 1)
    await cluster.produce(TOPIC, 0, b"0", b"1", b"2", b"3")
    leased = await fetch(cluster, 3, lease_ms=2000)
    assert await answer(cluster, leased[:1]) == []
    assert await answer(cluster, leased[1:2], pb.RELEASE_SHARE, time_ms=60_000) == []
    shown = generate_latest(registry).decode()
    for line in (
        'ledgermq_queue_messages_leased_total{group="workers"} 3.0',
        'ledgermq_queue_messages_answered_total{group="workers",word="accept"} 1.0',
        'ledgermq_queue_backlog_messages{group="workers",topic="jobs"} 3.0',
        'ledgermq_queue_leased_messages{group="workers",topic="jobs"} 1.0',
        'ledgermq_queue_waiting_messages{group="workers",topic="jobs"} 1.0',
    ):
        assert line in shown, line
    await asyncio.sleep(5)
    again = await fetch(cluster, 1)
    assert await answer(cluster, leased[2:]) == [2]
    shown = generate_latest(registry).decode()
    for line in (
        'ledgermq_queue_leases_expired_total{group="workers"} 1.0',
        'ledgermq_queue_messages_leased_again_total{group="workers"} 1.0',
        'ledgermq_queue_messages_answered_late_total{group="workers",word="accept"} 1.0',
    ):
        assert line in shown, line
    assert len(again) == 1


def about(seconds: float) -> object:
    """The broker estimates the store's time."""
    return pytest.approx(seconds, abs=2)


@virtual
async def test_the_age_of_the_oldest_message_that_is_not_finished_is_sampled_without_requests() -> None:
    registry = CollectorRegistry()
    metrics = QueueAgeMetrics(registry)
    store = FaultyStore(MemoryStore("", virtual_sources(1000)), virtual_sources(1))
    async with cluster_of("a:1", store=store) as cluster:
        broker = cluster.brokers["a:1"]
        now_us = broker.context.sources.now_us
        await cluster.create(TOPIC, 1, message_timestamp_type="LogAppendTime")

        async def age_s(after_s: float = 0) -> float | None:
            await asyncio.sleep(after_s)
            asked = store.calls.total() - store.calls["put"] - store.calls["list"]
            await metrics.sample(broker.shares, now_us)
            assert store.calls.total() - store.calls["put"] - store.calls["list"] == asked
            return registry.get_sample_value("ledgermq_queue_oldest_seconds", {"group": "workers", "topic": TOPIC})

        await cluster.produce(TOPIC, 0, b"0")
        assert await age_s() is None, "no group reads it"
        [first] = await fetch(cluster, 1)
        assert await age_s(100) == about(100), "it is leased, and not finished"
        await cluster.produce(TOPIC, 0, b"1")
        assert await age_s(50) == about(150), "the oldest counts"
        [first] = await fetch(cluster, 1)
        assert await answer(cluster, [first]) == []
        assert await age_s() == about(50)
        [second] = await fetch(cluster, 1)
        assert await answer(cluster, [second]) == []
        assert await age_s() is None, "all are finished"
        await cluster.produce(TOPIC, 0, b"2")
        assert await age_s(10) == about(10)
        await cluster.stop("a:1")
        assert await age_s() is None, "another broker reports it now"

"""What a broker counts about queue groups, and shows at each scrape."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, generate_latest

from ledgermq.protocol import ledgermq_pb2 as pb
from stateless_broker.metrics.scrape import BrokerCollector
from stateless_broker.metrics.share_metrics import ShareMetrics
from stateless_broker.metrics.topic_totals import TopicTotals
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.queue_calls import TOPIC, answer, fetch


@in_cluster()
async def test_leases_and_words_are_counted_and_what_is_left_is_shown(cluster: Cluster) -> None:
    registry = CollectorRegistry()
    cluster.share_counts["a:1"] = ShareMetrics(registry)
    broker = await cluster.start("a:1")
    await cluster.settled()
    registry.register(BrokerCollector(lambda: broker, TopicTotals(10)))
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

"""Count what backlog quotas refuse and delete, by topic. How far partitions are behind is read at each scrape
(`scrape.py`).

The first `TOPICS_MAX` topics that reach a quota have their own series; all others share one.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from ledgermq_broker.backlogs.counts import BacklogCounts
from ledgermq_broker.metrics.topic_totals import OTHER

TOPICS_MAX = 100


class BacklogMetrics(BacklogCounts):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._refused = Counter(
            "ledgermq_backlog_refusals",
            "Batches that were refused because the backlog of their partition was above its quota; with the policy"
            " producer_request_hold they come again",
            ("topic", "policy"),
            registry=registry,
        )
        self._evicted = Counter(
            "ledgermq_backlog_evicted_records",
            "Records that the policy consumer_backlog_eviction deleted, although a group had not committed them",
            ("topic",),
            registry=registry,
        )
        self._topics: set[str] = set()

    def refused(self, topic: str, policy: str) -> None:
        self._refused.labels(self._shown(topic), policy).inc()

    def evicted(self, topic: str, records: int) -> None:
        self._evicted.labels(self._shown(topic)).inc(records)

    def _shown(self, topic: str) -> str:
        if topic not in self._topics and len(self._topics) >= TOPICS_MAX:
            return OTHER
        self._topics.add(topic)
        return topic

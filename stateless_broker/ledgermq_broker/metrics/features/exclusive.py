"""Count what brokers decide about exclusive producers. The number of held partitions is read at each scrape
(`scrape.py`).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from ledgermq.errors import PartitionHeld, ProducerFenced
from ledgermq_broker.exclusive.counts import CHANGES, HolderCounts


class HolderMetrics(HolderCounts):
    def __init__(self, registry: CollectorRegistry) -> None:
        changes = Counter(
            "ledgermq_exclusive_producer_changes",
            "Changes of the exclusive producer of a partition: opened, fenced (another one took its place), expired"
            " (it renewed nothing), released",
            ("change",),
            registry=registry,
        )
        refused = Counter(
            "ledgermq_exclusive_refused_batches",
            "Batches that were refused because an exclusive producer has the partition, or their own producer lost it",
            ("code",),
            registry=registry,
        )
        self._changes = {change: changes.labels(change) for change in CHANGES}
        self._refused = {code: refused.labels(code) for code in (PartitionHeld.code, ProducerFenced.code)}

    def changed(self, change: str) -> None:
        self._changes[change].inc()

    def refused(self, code: str) -> None:
        self._refused[code].inc()

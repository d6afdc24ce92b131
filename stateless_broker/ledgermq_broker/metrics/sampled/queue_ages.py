"""Sample how old the oldest message is that a queue group has not finished, while the process runs. Each
broker reports the partitions that it serves.

A message has the time of its batch, about (`ledgermq_ledger.view.backlog`). It is looked up again only when the
group has finished it, so a group that stands still costs nothing; where it is in Parquet, the first look
may read a list of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ledgermq.errors import LedgerMQError
from ledgermq_broker.metrics.sampled.sampling import PAIRS_MAX, PARTITIONS_MAX, sample_on
from ledgermq_broker.queues.partition import BundleQueues
from ledgermq_broker.queues.shares import Shares
from ledgermq_broker.queues.state.records import ShareKey


class QueueAgeMetrics(Collector):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._ages: dict[tuple[str, str], float] = {}
        self._seen: dict[tuple[BundleQueues, ShareKey], tuple[int, int | None]] = {}
        """The first message that is not finished, and its time in microseconds since the epoch."""
        registry.register(self)

    async def run(self, shares: Shares, now_us: Callable[[], int]) -> None:
        """Sample until cancelled."""
        await sample_on(lambda: self.sample(shares, now_us), "age of messages of queues")

    async def sample(self, shares: Shares, now_us: Callable[[], int]) -> None:
        """`now_us`: microseconds since the epoch, by this machine's clock."""
        before, seen = self._seen, dict[tuple[BundleQueues, ShareKey], tuple[int, int | None]]()
        ages: dict[tuple[str, str], float] = {}
        for queues in shares.served():
            for unfinished in queues.unfinished():
                if len(seen) >= PARTITIONS_MAX:
                    break
                at = (queues, unfinished.key)
                found = before.get(at)
                if found is None or found[0] != unfinished.start:
                    try:
                        oldest_us = await queues.oldest_us(unfinished)
                    except LedgerMQError:
                        continue  # the next sample tries again
                    found = (unfinished.start, oldest_us)
                seen[at] = found
                if found[1] is not None:
                    pair = (unfinished.key.group, unfinished.topic.name)
                    ages[pair] = max(ages.get(pair, 0.0), (now_us() - found[1]) / 1e6)
        self._seen, self._ages = seen, ages

    def collect(self) -> Iterable[Metric]:
        age = GaugeMetricFamily(
            "ledgermq_queue_oldest_seconds",
            "Age of the oldest message that the queue group has not finished in the partitions served here, by the time"
            " of its batch; absent if all are finished",
            labels=("group", "topic"),
        )
        for labels, seconds in sorted(self._ages.items(), key=lambda item: (-item[1], item[0]))[:PAIRS_MAX]:
            age.add_metric(labels, seconds)
        yield age

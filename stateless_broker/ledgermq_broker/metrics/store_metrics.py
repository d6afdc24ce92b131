"""Measure requests to the object store: how many, how long, how many bytes, and their cost by a
price table.

Every attempt counts, retries included, as on the store's bill. A list counts as one request however
many pages it takes, and so does a delete of many objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.metrics import names
from ledgermq_ledger.object_store.prices import PICO
from ledgermq_ledger.object_store.wrappers.metered import StoreMeter
from ledgermq_ledger.root.copies import OUTCOMES

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
WINDOW_S = 600.0
SAMPLE_EVERY_S = 5.0


@dataclass
class HourlyRate:
    """Dollars per hour over the last ten minutes, from samples of a total that are taken at scrape
    time.
    """

    samples: deque[tuple[float, float]] = field(default_factory=deque)

    def at(self, now_s: float, total: float) -> float:
        if not self.samples or now_s - self.samples[-1][0] >= SAMPLE_EVERY_S:
            self.samples.append((now_s, total))
        while len(self.samples) > 2 and now_s - self.samples[1][0] >= WINDOW_S:
            self.samples.popleft()
        begun_s, before = self.samples[0]
        return 3600 * (total - before) / (now_s - begun_s) if now_s > begun_s else 0.0


class StoreMetrics(StoreMeter, Collector):
    """Meter to give to `open_store`.

    `costs` counts what the requests cost, and for whom.
    """

    def __init__(self, registry: CollectorRegistry, costs: StoreCosts, now_s: float) -> None:
        self.costs = costs
        self._now_s = now_s
        self._rate = HourlyRate(deque([(now_s, 0.0)]))
        labels = ("operation", "outcome")
        self._requests = Counter(
            names.STORE_REQUESTS, "Requests to the object store; every attempt counts", labels, registry=registry
        )
        self._seconds = Histogram(
            "ledgermq_store_request_seconds",
            "Duration of requests to the object store",
            labels[:1],
            buckets=SECONDS,
            registry=registry,
        )
        self._sent = Counter(
            "ledgermq_store_sent_bytes", "Bytes put into the object store", labels[:1], registry=registry
        )
        self._received = Counter(
            "ledgermq_store_received_bytes", "Bytes read from the object store", labels[:1], registry=registry
        )
        self._damaged = Counter(
            "ledgermq_damaged_objects",
            "Objects of bundle 0 found damaged, by outcome: mended, read_from_copy, lost (the copy is damaged, too)",
            ("outcome",),
            registry=registry,
        )
        for outcome in OUTCOMES:
            self._damaged.labels(outcome)
        self._by_outcome: dict[tuple[str, str], Counter] = {}
        self._by_operation: dict[str, tuple[Histogram, Counter, Counter]] = {}
        registry.register(self)

    def request_ended(self, operation: str, outcome: str, seconds: float, bytes_sent: int, bytes_received: int) -> None:
        requests = self._by_outcome.get((operation, outcome))
        if requests is None:
            requests = self._by_outcome[operation, outcome] = self._requests.labels(operation, outcome)
        bound = self._by_operation.get(operation)
        if bound is None:
            bound = self._by_operation[operation] = (
                self._seconds.labels(operation),
                self._sent.labels(operation),
                self._received.labels(operation),
            )
        requests.inc()
        bound[0].observe(seconds)
        if bytes_sent:
            bound[1].inc(bytes_sent)
        if bytes_received:
            bound[2].inc(bytes_received)
        self.costs.request_ended(operation, outcome, seconds, bytes_sent, bytes_received)

    def object_damaged(self, key: str, outcome: str) -> None:
        self._damaged.labels(outcome).inc()

    def at(self, now_s: float) -> None:
        """Set the time before a scrape; rates need it."""
        self._now_s = now_s

    def collect(self) -> Iterable[Metric]:
        dollars = self.costs.total / PICO
        yield CounterMetricFamily(
            "ledgermq_store_dollars", "Estimated price of the counted requests, in dollars", dollars
        )
        rate = self._rate.at(self._now_s, dollars)
        yield GaugeMetricFamily(
            names.STORE_DOLLARS_PER_HOUR,
            "Estimated price per hour in dollars, over the last ten minutes of scrapes",
            rate,
        )

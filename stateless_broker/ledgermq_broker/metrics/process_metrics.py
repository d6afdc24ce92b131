"""Hold all metrics of one process in its own registry, and render their text for Prometheus."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from ledgermq_broker.broker import Broker
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.costs.racks import RackTraffic
from ledgermq_broker.metrics import names
from ledgermq_broker.metrics.call_metrics import CallMetrics
from ledgermq_broker.metrics.features.backlogs import BacklogMetrics
from ledgermq_broker.metrics.features.exclusive import HolderMetrics
from ledgermq_broker.metrics.features.functions import FunctionMetrics
from ledgermq_broker.metrics.features.queues import ShareMetrics
from ledgermq_broker.metrics.features.quotas import QuotaMetrics
from ledgermq_broker.metrics.features.timed import TimerMetrics
from ledgermq_broker.metrics.features.transactions import TransactionMetrics
from ledgermq_broker.metrics.owner_metrics import OwnerMetrics
from ledgermq_broker.metrics.sampled.group_lag import GroupLagMetrics
from ledgermq_broker.metrics.sampled.queue_ages import QueueAgeMetrics
from ledgermq_broker.metrics.scrape import BrokerCollector
from ledgermq_broker.metrics.store_metrics import StoreMetrics
from ledgermq_broker.node import Hooks
from ledgermq_broker.ports.tls import TlsMeter
from ledgermq_ledger.object_store.prices import prices_for

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for every counter, of no use here


COUNTS = (TransactionMetrics, TimerMetrics, ShareMetrics, HolderMetrics, QuotaMetrics, BacklogMetrics)
"""Observers of features."""


class ProcessMetrics:
    """`store`, `calls`, `owners`, `counts`: the hooks.

    `broker`: set once it is up. `is_ready`: read for the gauge.
    """

    def __init__(self, root_url: str) -> None:
        self.registry = CollectorRegistry()
        self.broker: Broker | None = None
        ProcessCollector(registry=self.registry)
        self.ready = Gauge(names.READY, "1 while the process may be given work", registry=self.registry)
        self.costs = StoreCosts(prices_for(root_url))
        self.racks = RackTraffic()
        self.store = StoreMetrics(self.registry, self.costs, asyncio.get_running_loop().time())
        self.calls = CallMetrics(self.registry)
        self.owners = OwnerMetrics(self.registry)
        self.counts = tuple(kind(self.registry) for kind in COUNTS)
        self.functions = FunctionMetrics(self.registry)
        self.tls = TlsMetrics(self.registry)
        self.lines = LogLines(self.registry)
        self.group_lag = GroupLagMetrics(self.registry)
        self.queue_ages = QueueAgeMetrics(self.registry)
        self.registry.register(BrokerCollector(lambda: self.broker, self.owners.topics, self.costs, self.racks))

    @property
    def hooks(self) -> Hooks:
        return Hooks(self.store, self.calls, self.owners, self.counts, self.functions, self.costs, self.racks)

    def render(self, *, is_ready: bool) -> bytes:
        self.ready.set(is_ready)
        self.store.at(asyncio.get_running_loop().time())
        return generate_latest(self.registry)


class TlsMetrics(TlsMeter):
    def __init__(self, registry: CollectorRegistry) -> None:
        reloads = Counter(
            "ledgermq_tls_reloads",
            "Changes of the TLS files that were read; refused: they cannot be used, and the former certificate stays",
            ("outcome",),
            registry=registry,
        )
        self._reloaded, self._refused = reloads.labels("loaded"), reloads.labels("refused")
        self._expires = Gauge(
            "ledgermq_tls_certificate_expires_seconds",
            "Unix time at which the certificate in use expires; 0 without TLS",
            registry=registry,
        )

    def in_use(self, expires: datetime) -> None:
        self._expires.set(expires.timestamp())

    def reloaded(self) -> None:
        self._reloaded.inc()

    def refused(self) -> None:
        self._refused.inc()


class LogLines(logging.Handler):
    """Count the lines logged at warning and above."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(logging.WARNING)
        lines = Counter("ledgermq_log_lines", "Lines logged at this level", ("level",), registry=registry)
        self._lines = {level: lines.labels(level.lower()) for level in ("WARNING", "ERROR", "CRITICAL")}

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelname in self._lines:
            self._lines[record.levelname].inc()

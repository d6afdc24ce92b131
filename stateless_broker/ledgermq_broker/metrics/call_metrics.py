"""Measure gRPC calls: how many, how they ended, how long unary ones took, how many streams are
open.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ledgermq.protocol.methods import METHODS, Kind
from ledgermq_broker.metrics import names
from ledgermq_broker.metrics.store_metrics import SECONDS
from ledgermq_broker.ports.call_meter import CallMeter


class CallMetrics(CallMeter):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter("ledgermq_calls", "gRPC calls that have ended", ("method", "code"), registry=registry)
        self._all_seconds = Histogram(
            "ledgermq_call_seconds",
            "How long unary gRPC calls take, long polls included",
            ("method",),
            buckets=SECONDS,
            registry=registry,
        )
        streams = Gauge(names.OPEN_STREAMS, "gRPC streams that are open now", ("method",), registry=registry)
        self._ended: dict[tuple[str, str], Counter] = {}
        self._seconds: dict[str, Histogram] = {}
        self._streams = {
            method.name: streams.labels(method.name) for method in METHODS if method.kind is not Kind.UNARY
        }

    def begun(self, method: str) -> None:
        if method in self._streams:
            self._streams[method].inc()

    def ended(self, method: str, code: str, seconds: float) -> None:
        bound = self._ended.get((method, code))
        if bound is None:
            bound = self._ended[method, code] = self._calls.labels(method, code)
        bound.inc()
        if method in self._streams:
            self._streams[method].dec()
            return
        histogram = self._seconds.get(method)
        if histogram is None:
            histogram = self._seconds[method] = self._all_seconds.labels(method)
        histogram.observe(seconds)

"""Metrics of a gateway. Labels are a route's template, a known method and a status, so that scans make no series."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "ledgermq_gateway_requests_total",
            "Requests by route, method and status; route is empty for paths that do not exist",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "ledgermq_gateway_request_seconds",
            "Time from the header of a request to the end of its answer, without streams",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.malformed = Counter(
            "ledgermq_gateway_malformed_total",
            "Requests that were refused unread: no HTTP, headers too large, too many connections",
            registry=self._registry,
        )

        # To look up what counts labels takes longer than to count.
        self._requests_of = cache(self._requests.labels)
        self._seconds_of = cache(self._seconds.labels)

    def handled(self, method: str, route: str, status: int, seconds: float) -> None:
        shown = method if route and method in METHODS else "other"
        self._requests_of(route, shown, status).inc()
        if route:
            self._seconds_of(route).observe(seconds)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(name, text, registry=self._registry).set_function(value)

    def render(self) -> bytes:
        return generate_latest(self._registry)

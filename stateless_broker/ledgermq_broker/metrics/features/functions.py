"""Count what filter functions say of messages, and how often their processes end."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from ledgermq_broker.filter_functions.judging import FilterFunctionCounts


class FunctionMetrics(FilterFunctionCounts):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._judged = Counter(
            "ledgermq_filter_function_records",
            "Records that a filter function has judged: kept, left_out, raised or overtime; the last two are left out,"
            " too, because the function failed on them",
            ("function", "outcome"),
            registry=registry,
        )
        self._stopped = Counter(
            "ledgermq_filter_function_stops",
            "Processes of filter functions that ended, or were ended because a message took too long",
            ("function",),
            registry=registry,
        )

    def judged(self, function: str, outcome: str, records: int) -> None:
        self._judged.labels(function, outcome).inc(records)

    def stopped(self, function: str) -> None:
        self._stopped.labels(function).inc()

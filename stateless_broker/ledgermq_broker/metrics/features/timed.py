"""Count timed messages: taken in, delivered, dropped, recalled and moved. The numbers of those that wait
are read at each scrape (`scrape.py`).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from ledgermq_broker.timed.counts import DROPS, OUTCOMES, TimerCounts


class TimerMetrics(TimerCounts):
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ledgermq_timed_{name}", text, labels, registry=registry)

        self._taken_in = counter("messages_taken_in", "Timed messages that became durable")
        self._taken_in_bytes = counter("taken_in_bytes", "Bytes of the timed messages that became durable, as sent")
        self._delivered = counter("messages_delivered", "Timed messages that became durable in their partitions")
        self._delivered_bytes = counter("delivered_bytes", "Bytes of the timed messages that were delivered, as stored")
        self._late_seconds = Gauge(
            "ledgermq_timed_late_seconds",
            "Time from the due time of the first message of the newest delivery until that was durable",
            ("bundle",),
            registry=registry,
        )
        self._dropped = counter(
            "messages_dropped",
            "Timed messages that were due and not delivered: recalled, or removed (their topic)",
            "why",
        )
        self._recalls = counter(
            "recalls", "Answers to recalls of timed messages: recalled, too_late, forgotten", "outcome"
        )
        self._moved = counter("messages_moved", "Timed messages that were written again, into the range of their time")
        self._moved_bytes = counter("moved_bytes", "Bytes of the timed messages that were written again")
        for why in DROPS:
            self._dropped.labels(why)
        for outcome in OUTCOMES:
            self._recalls.labels(outcome)

    def taken_in(self, bundle: int, messages: int, size_bytes: int) -> None:
        self._taken_in.inc(messages)
        self._taken_in_bytes.inc(size_bytes)

    def delivered(self, bundle: int, messages: int, size_bytes: int, late_ms: float) -> None:
        self._delivered.inc(messages)
        self._delivered_bytes.inc(size_bytes)
        self._late_seconds.labels(str(bundle)).set(late_ms / 1000)

    def dropped(self, bundle: int, messages: int, why: str) -> None:
        self._dropped.labels(why).inc(messages)

    def recalled(self, bundle: int, outcome: str) -> None:
        self._recalls.labels(outcome).inc()

    def moved(self, bundle: int, messages: int, size_bytes: int) -> None:
        self._moved.inc(messages)
        self._moved_bytes.inc(size_bytes)

"""Metrics of clients, by OpenTelemetry's API and its semantic conventions for messaging. A program chooses where they
go by its meter provider: to a collector by OTLP, or to Prometheus by OpenTelemetry's exporter.

Instruments belong to a provider, so all clients of a process share them. They are touched once for a batch, a fetched
run of messages or a call of a handler, never for a single record. No attribute holds a key, a value, a token or the
text of an error; topics beyond the first 100 count as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from ledgermq.telemetry.tracing import SCHEMA_URL, SYSTEM, Attributes

TOPICS_MAX = 100
OTHER = "(other)"
"""Destination of all topics beyond the bound; no topic can have this name."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Bounds of the histograms, those of the semantic conventions."""


class Buffering(Protocol):
    """A producer."""

    @property
    def buffered_bytes(self) -> int: ...


class ClientMetrics:
    def __init__(self) -> None:
        meter = metrics.get_meter("ledgermq", version("ledgermq"), schema_url=SCHEMA_URL)

        def histogram(name: str, what: str) -> metrics.Histogram:
            return meter.create_histogram(name, "s", what, explicit_bucket_boundaries_advisory=SECONDS)

        self._operations = histogram(
            "messaging.client.operation.duration", "Time of a batch from its first record until it is stored or staged"
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that were stored or staged, or have failed"
        )
        self._retries = meter.create_counter(
            "ledgermq.client.retries", "{attempt}", "Attempts to send a batch after the first one"
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that came to the program"
        )
        self._processing = histogram("messaging.process.duration", "Time of a call of a handler")
        self._producers = WeakValueDictionary[int, Buffering]()
        self._topics: set[str] = set()
        meter.create_observable_up_down_counter(
            "ledgermq.client.buffer.usage", [self._usage], "By", "Bytes of records that are not answered yet"
        )

    def holds(self, producer: Buffering) -> None:
        """Count what the producer has in its buffer, as long as it lives."""
        self._producers[id(producer)] = producer

    def _usage(self, options: CallbackOptions) -> Iterable[Observation]:
        producers = [found for each in self._producers.valuerefs() if (found := each()) is not None]
        yield Observation(sum(each.buffered_bytes for each in producers), {"messaging.system": SYSTEM})

    def _attributes(
        self, operation: str, topic: str, group: str = "", error: BaseException | None = None
    ) -> Attributes:
        if topic not in self._topics:
            if len(self._topics) >= TOPICS_MAX:
                topic = OTHER
            else:
                self._topics.add(topic)
        found: Attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": operation,
            "messaging.destination.name": topic,
        }
        if group:
            found["messaging.consumer.group.name"] = group
        if error is not None:
            found["error.type"] = getattr(error, "code", "") or type(error).__name__
        return found

    def sent(self, topic: str, records: int, seconds: float) -> None:
        """Count a batch that is stored, or staged."""
        attributes = self._attributes("send", topic)
        self._sent.add(records, attributes)
        self._operations.record(seconds, attributes)

    def failed(self, topic: str, records: int, error: BaseException) -> None:
        """Count records that have failed for good."""
        self._sent.add(records, self._attributes("send", topic, error=error))

    def retried(self, topic: str) -> None:
        """Count another attempt of a batch."""
        self._retries.add(1, self._attributes("send", topic))

    def consumed(self, topic: str, group: str, records: int) -> None:
        """Count messages that came to the program."""
        self._consumed.add(records, self._attributes("receive", topic, group))

    @contextmanager
    def processing(self, topic: str, group: str, now_s: Callable[[], float]) -> Iterator[None]:
        """Measure a call of a handler. `now_s`: seconds of a clock that never goes back."""
        begun_s, failure = now_s(), None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            self._processing.record(now_s() - begun_s, self._attributes("process", topic, group, failure))


_made: WeakKeyDictionary[MeterProvider, Any] = WeakKeyDictionary()


def shared_metrics() -> ClientMetrics:
    """Return the metrics of the program's meter provider."""
    provider = metrics.get_meter_provider()
    if provider not in _made:
        _made[provider] = ClientMetrics()
    made: ClientMetrics = _made[provider]
    return made

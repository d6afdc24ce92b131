"""Compute from two readings of /metrics what happened in between. Pure: text in, numbers out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite

from prometheus_client.parser import text_string_to_metric_families

from ledgermq_broker.metrics import names
from ledgermq_broker.metrics.names import buckets, total
from ledgermq_broker.metrics.topic_totals import OTHER

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """`values` by (name, labels); `at_s`: time of the reading, by any monotonic clock."""

    at_s: float
    values: dict[tuple[str, Labels], float]

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum over all series of that name that have these labels."""
        wanted = set(labels.items())
        return sum(value for (found, has), value in self.values.items() if found == name and wanted <= set(has))

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return sums by the values of one label."""
        found: defaultdict[str, float] = defaultdict(float)
        for (series, has), value in self.values.items():
            if series == name:
                found[dict(has).get(label, "")] += value
        return dict(found)


def parse(text: str, at_s: float) -> Reading:
    """Parse the text of /metrics. Raises ValueError for text that is not Prometheus', or whose
    buckets have no bounds.

    Values that are not numbers are omitted.
    """
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            float(sample.labels.get("le", 0))
            if isfinite(sample.value):
                values[sample.name, tuple(sorted(sample.labels.items()))] = float(sample.value)
    return Reading(at_s, values)


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """Rates are per second. `trouble`: why nothing could be read, or the broker's problem."""

    admin: str
    broker: str = ""
    ready: bool = False
    bundles: int = 0
    streams: int = 0
    records_in: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    puts: float = 0.0
    gets: float = 0.0
    flush_p99_s: float | None = None
    cache_hits: float | None = None
    dollars_per_hour: float = 0.0
    cpu: float = 0.0
    memory_bytes: float = 0.0
    heartbeat_s: float = 0.0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class TopicRow:
    topic: str
    records_in: float
    bytes_in: float
    records_out: float
    bytes_out: float


@dataclass(frozen=True, slots=True)
class View:
    brokers: list[BrokerRow] = field(default_factory=list)
    topics: list[TopicRow] = field(default_factory=list)


def broker_row(admin: str, before: Reading, now: Reading) -> BrokerRow:
    def rate(name: str, **labels: str) -> float:
        return _rate(before.sum(name, **labels), now.sum(name, **labels), now.at_s - before.at_s)

    def requests(*operations: str) -> float:
        return sum(rate(total(names.STORE_REQUESTS), operation=operation) for operation in operations)

    reads, hits = rate(total(names.READS)), rate(total(names.READS), source="cache")
    troubled = sorted(now.by(names.BUNDLE_TROUBLE, "bundle"), key=lambda bundle: (len(bundle), bundle))
    parked = now.sum(names.PARKED_PARTITIONS)
    trouble = [f"bundle {bundle} is in trouble" for bundle in troubled] + (
        [f"{parked:.0f} partitions parked"] if parked else []
    )
    return BrokerRow(
        admin=admin,
        broker=next(iter(now.by(names.BROKER_INFO, "broker")), ""),
        ready=now.sum(names.READY) > 0,
        bundles=int(now.sum(names.OWNED_BUNDLES)),
        streams=int(now.sum(names.OPEN_STREAMS)),
        records_in=rate(total(names.PRODUCED_RECORDS)),
        bytes_in=rate(total(names.PRODUCED_BYTES)),
        bytes_out=rate(total(names.FETCHED_BYTES)),
        puts=requests("put_if_absent", "put", "fenced_put"),
        gets=requests("get", "get_range", "get_suffix", "head", "list"),
        flush_p99_s=quantile(0.99, before, now, buckets(names.FLUSH_SECONDS)),
        cache_hits=hits / reads if reads else None,
        dollars_per_hour=now.sum(names.STORE_DOLLARS_PER_HOUR),
        cpu=rate("process_cpu_seconds_total"),
        memory_bytes=now.sum("process_resident_memory_bytes"),
        heartbeat_s=now.sum(names.HEARTBEAT_AGE_SECONDS),
        trouble=", ".join(trouble),
    )


def topic_rows(pairs: Iterable[tuple[Reading, Reading]]) -> list[TopicRow]:
    """Return rows summed over brokers, the busiest first. `pairs`: each broker's previous and
    current reading.
    """
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    counters = (names.PRODUCED_RECORDS, names.PRODUCED_BYTES, names.FETCHED_RECORDS, names.FETCHED_BYTES)
    for before, now in pairs:
        for place, counter in enumerate(counters):
            earlier = before.by(total(counter), "topic")
            for topic, value in now.by(total(counter), "topic").items():
                sums[topic][place] += _rate(earlier.get(topic, 0.0), value, now.at_s - before.at_s)
    rows = [TopicRow(topic, *found) for topic, found in sums.items() if topic != OTHER or any(found)]
    return sorted(rows, key=lambda row: (-row.bytes_in - row.bytes_out, row.topic))


def quantile(q: float, before: Reading, now: Reading, name: str) -> float | None:
    """Return the upper bound of the bucket of the quantile, or None if nothing was observed in
    between.
    """
    earlier = before.by(name, "le")
    counts = {float(le): value - earlier.get(le, 0.0) for le, value in now.by(name, "le").items()}
    observed = counts.get(float("inf"), 0.0)
    if observed <= 0:
        return None
    return min(le for le, count in counts.items() if count >= q * observed)


def _rate(before: float, now: float, seconds: float) -> float:
    """Return the rate; a counter that decreased belongs to a restarted process."""
    return (now if now < before else now - before) / seconds if seconds > 0 else 0.0

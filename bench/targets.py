"""Compare targets with results, row by row. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench import (
    afar,
    attacks,
    backlog,
    console,
    fairness,
    gateway,
    growing,
    kafka_port,
    keyed,
    latency,
    limits,
    long_runs,
    many,
    many_topics,
    parquet,
    processes,
    requests,
    security,
    slow,
    streams_beside,
    takeover,
    timed,
    tracing,
    transactions,
    turns,
    visibility,
)
from bench.measures import Results
from bench.peers import confluent
from bench.throughput import KAFKA, OURS


@dataclass(frozen=True, slots=True)
class Target:
    """`ratio`: value of `subject` / value of `to`; without `to` it is the value itself.

    The target is met at `wanted` or more (with `most`: or less).
    """

    row: str
    what: str
    subject: str
    to: str | None
    wanted: float
    most: bool = False

    def value(self, results: Results) -> float | None:
        """Return the value; None if it was not measured."""
        if self.to is not None:
            return results.ratio(self.row, self.what, self.subject, self.to)
        found = results.of(self.row, self.what, self.subject)
        return found.median if found is not None else None

    def met(self, value: float) -> bool:
        return value <= self.wanted if self.most else value >= self.wanted

    def name(self) -> str:
        return f"{self.what}: {self.subject}" + (f" / {self.to}" if self.to is not None else "")

    def bound(self, unit: str) -> str:
        return f"{'≤' if self.most else '≥'} {self.wanted:g}" + (f" {unit}" if self.to is None else "")


@dataclass(frozen=True, slots=True)
class Reached:
    """A target beside its value, both as text."""

    target: Target
    value: str
    bound: str
    met: bool


def reached(results: Results, targets: Iterable[Target]) -> list[Reached]:
    """Return the targets that were measured."""
    found = []
    for target in targets:
        value = target.value(results)
        measure = results.of(target.row, target.what, target.subject)
        if value is not None and measure is not None:
            unit = "" if target.to is not None else measure.unit
            found.append(Reached(target, f"{value:,.2f} {unit}".rstrip(), target.bound(unit), target.met(value)))
    return found


def _most(row: str, what: str, subject: str, to: str | None, wanted: float) -> Target:
    return Target(row, what, subject, to, wanted, most=True)


TARGETS = (
    Target("P1", "produce 1000 B", f"{OURS} send", KAFKA, 2.5),
    Target("P1", "produce 1000 B", f"{OURS} send_batch", KAFKA, 2.5),
    Target("P1", "produce and consume 1000 B", f"{OURS} send", KAFKA, 2.5),
    Target("P1", "produce and consume 1000 B", f"{OURS} send_batch", KAFKA, 2.5),
    Target("P2", "produce 100 B", f"{OURS} send", KAFKA, 2.5),
    Target("P2", "produce 100 B", f"{OURS} send_many", KAFKA, 5.0),
    Target("P2", "produce 100 B", f"{OURS} send_batch", KAFKA, 5.0),
    Target("P2", "produce 100 B", f"{OURS} send", confluent.SUBJECT, 4.0),
    Target("V1", keyed.KEYED["V1"], f"{OURS} send", confluent.SUBJECT, 1.0),
    Target("V1", keyed.KEYED["V1"], f"{OURS} send_many", confluent.SUBJECT, 2.0),
    Target("V1", keyed.KEYED["V1"], f"{OURS} send_batch", confluent.SUBJECT, 2.0),
    Target("V2", keyed.KEYED["V2"], f"{OURS} send", confluent.SUBJECT, 0.7),
    *(
        Target(row, kafka_port.produce(size, compression), kafka_port.OURS, kafka_port.KAFKA, wanted)
        for row, size, compression, wanted in (
            ("K1", 1000, "none", 1.0),
            ("K1", 1000, "lz4", 1.0),
            ("K2", 100, "none", 0.8),
            ("K2", 100, "lz4", 0.8),
        )
    ),
    *(
        _most(row, f"{kafka_port.CPU}, {kafka_port.produce(size, compression)}", kafka_port.OURS, None, wanted)
        for row, size, compression, wanted in (
            ("K1", 1000, "none", 5.0),
            ("K1", 1000, "lz4", 7.0),
            ("K2", 100, "lz4", 10.0),
        )
    ),
    *(Target("K3", kafka_port.consume(size), kafka_port.OURS, kafka_port.KAFKA, 1.0) for size in kafka_port.SIZES),
    _most("K3", f"{kafka_port.CPU}, {kafka_port.consume(1000)}", kafka_port.OURS, kafka_port.SDK, 1.3),
    Target("K4", kafka_port.BACKLOG, kafka_port.OURS, kafka_port.KAFKA, 0.7),
    Target("K5", kafka_port.JAVA_PRODUCES, kafka_port.OURS, kafka_port.KAFKA, 0.9),
    Target("K5", kafka_port.JAVA_CONSUMES, kafka_port.OURS, kafka_port.KAFKA, 0.7),
    _most("K6", transactions.seen("p99", is_open=False), kafka_port.OURS, kafka_port.KAFKA, 1.0),
    _most("K6", transactions.seen("p99", is_open=True), kafka_port.OURS, kafka_port.KAFKA, 0.1),
    _most("K7", kafka_port.MEMORY, kafka_port.OURS, None, 40.0),
    _most("K7", kafka_port.REST, kafka_port.OURS, None, 1.0),
    _most("K8", kafka_port.SINGLE, kafka_port.OURS, None, 130.0),
    _most("K9", f"{kafka_port.COMMIT}, p50", kafka_port.OURS, kafka_port.SDK, 1.2),
    _most("V6", f"{keyed.HANDLING['V6'][1]}, {keyed.CPU}", OURS, None, 10.0),
    _most("V6", f"{keyed.QUEUED}, {keyed.CPU}", OURS, None, 40.0),
    *(
        _most("P4", f"acknowledgement at 100/s, {store}, {part}", subject, latency.CALL, wanted)
        for store, subjects in (
            ("file, fsync", (latency.OURS,)),
            ("MinIO", (latency.OURS, latency.UNSPACED)),
            ("HDFS", (latency.OURS, latency.UNSPACED)),
        )
        for subject in subjects
        for part, wanted in (("p50", 1.5), ("p99", 2.0))
    ),
    *(_most("P5", "PUTs a flush", requests.subject(n), None, 1.0) for n in (1, 10_000)),
    *(_most("P5", "segments put", requests.subject(n), requests.subject(8), 1.05) for n in (1000, 10_000)),
    *(
        _most("P6", f"{takeover.WHAT}, p99", takeover.subject(megabytes), None, 1.0)
        for megabytes in takeover.HISTORY_MB
    ),
    _most(
        "P6", takeover.WHAT, takeover.subject(max(takeover.HISTORY_MB)), takeover.subject(min(takeover.HISTORY_MB)), 1.2
    ),
    Target("P7", "segments to Parquet, values of 1000 B", parquet.COMPACTION, parquet.PLAIN_WRITE, 0.9),
    Target("P7", "segments to Parquet, values of 100 B", parquet.COMPACTION, parquet.PLAIN_WRITE, 0.9),
    *(Target("P7", parquet.scan(size), parquet.SOURCE, parquet.BARE, 0.85) for size in parquet.SCANNED),
    *(Target("P7", parquet.scan(size), parquet.SOURCE_WITH_SCHEMA, parquet.NATIVE, 0.7) for size in parquet.SCANNED),
    _most("P8", "acknowledged until in a Spark stream, p99", OURS, None, 1.0),
    *(
        _most(
            "P8",
            f"since a record was due, {visibility.RATE:.0f}/s, {part}",
            visibility.SEEN,
            visibility.ACKNOWLEDGED,
            1.5,
        )
        for part in ("p50", "p99")
    ),
    *(_most("P9", f"broker's memory, {load}", many.MANY, None, 1024.0) for load in many.RUNS.values()),
    *(
        _most("P9", f"broker's CPU, {load}", many.MANY, many.FEW, 1.2 if records > 1 else 5.0)
        for records, load in many.RUNS.items()
    ),
    _most("P9", "broker's memory with clients", "1,000 clients", None, 1024.0),
    _most("P9", "idle for a minute", OURS, None, 0.0),
    _most("P10", f"acknowledgement at {backlog.RATE:.0f}/s, p99", backlog.BESIDE, backlog.ALONE, 2.5),
    _most("P10", f"acknowledgement at {backlog.RATE:.0f}/s, p99", backlog.BESIDE, backlog.PEER_BESIDE, 1.0),
    Target("P11", processes.PRODUCE, *(processes.subject(n, processes.CORES) for n in (2, 1)), 1.5),
    _most("P12", slow.MEMORY, slow.beside(slow.READERS), None, 768.0),
    Target(long_runs.ROW, long_runs.PRODUCE, f"{OURS} send", KAFKA, 2.5),
    Target(long_runs.ROW, long_runs.PRODUCE, f"{OURS} send_batch", KAFKA, 5.0),
    Target(long_runs.ROW, long_runs.PRODUCE, f"{OURS} send_batch", limits.ENCODES[100].what, 0.5),
    *(Target(long_runs.ROW, long_runs.CONSUME, f"{OURS} {via}", KAFKA, 1.0) for via in ("messages", "arrow")),
    Target(long_runs.ROW, long_runs.CONSUME, f"{OURS} messages", limits.MAKES.what, 0.4),
    Target(long_runs.ROW, long_runs.CONSUME, f"{OURS} arrow", limits.DECODES[100].what, 0.5),
    Target("T1", transactions.WHAT, transactions.OURS, KAFKA, 2.0),
    *(
        _most("T1", transactions.in_puts(part), subject, None, puts)
        for subject in (transactions.OURS, transactions.AFAR)
        for part, puts in (("p50", 3.0), ("p99", 9.0))
    ),
    _most("T2", transactions.seen("p99", is_open=True), transactions.OURS, KAFKA, 0.1),
    Target("T3", transactions.BULK, transactions.INSIDE, transactions.OUTSIDE, 0.5),
    *(_most("T4", transactions.PUTS, subject, None, 0.1) for subject in transactions.CROWDS),
    *(Target("D1", timed.sending(size), timed.TIMED, timed.PLAIN, 0.5) for size in timed.SENT),
    *(Target("D2", timed.DELIVERED, subject, None, 200_000) for subject in (timed.APPENDED, timed.READ, timed.LIVE)),
    _most("D2", timed.live("p99"), timed.BESIDE, timed.ALONE, 1.5),
    *(
        _most("D3", f"{timed.MORE_MEMORY}, {when}", timed.waiting(timed.WAITING), None, 256.0)
        for when in timed.MEMORY_WHEN
    ),
    *(
        _most("D3", f"{what}, p99", timed.waiting(timed.WAITING), None, 1.0)
        for what in (timed.KILLED, timed.KILLED_TIMED)
    ),
    _most("D4", timed.late("p99"), timed.OURS, None, 1000.0),
    _most("D4", timed.crowded("p99"), timed.OURS, None, 1000.0),
    _most("D4", timed.EARLY, timed.OURS, None, 0.0),
    _most("D5", timed.BEYOND, timed.waiting(timed.IDLE_WAITING), None, 0.0),
    *(_most("S1", what, growing.OURS, None, 0.0) for what in (growing.LOST, growing.DOUBLED)),
    _most("S1", growing.stall(growing.DURING), growing.OURS, None, 1.0),
    _most("S1", growing.UNEVEN, growing.OURS, None, 20.0),
    _most("S2", f"{afar.WHAT}, p99", afar.STANDARD, None, 3.0),
    Target("S4", many_topics.MADE, many_topics.LAST, many_topics.FIRST, 0.8),
    *(_most("S4", many_topics.memory(when), many_topics.subject(), None, 1.0) for when in many_topics.WHEN),
    _most("S4", many_topics.WHAT, many_topics.subject(), None, 1.0),
    *(_most("P11", "brokers' CPU, end to end", processes.subject(n), None, 3.0) for n in (1, 2)),
    *(
        Target(security.ROW, what, subject, security.WITHOUT, least)
        for subject, least in ((security.WITH_TLS, 0.75), (security.WITH_RULES, 0.95))
        for what in (security.PRODUCE, security.CONSUME)
    ),
    _most(fairness.ROW, fairness.P99, fairness.BESIDE, fairness.ALONE, 10.0),
    _most(fairness.ROW, fairness.P99, fairness.BESIDE_QUOTA, fairness.ALONE, 3.0),
    *(Target(turns.ROW, turns.TURN, name, None, 1.0, most=True) for name in (turns.FEW, turns.MANY)),
    *(
        Target(tracing.ROW, tracing.SEND, name, None, 1.0, most=True)
        for name in (tracing.OUTSIDE, tracing.NOT_RECORDED)
    ),
    *(_most(attacks.ROW, attacks.P99, name, attacks.ALONE, 3.0) for name in attacks.ALL.values()),
    *(_most(attacks.ROW, attacks.P99_HTTP, name, attacks.ALONE, 3.0) for name in attacks.HTTP_FLOODS.values()),
    Target(fairness.ROW, fairness.SHARE, fairness.ONE_CONNECTION, None, 0.4),
    _most("G1", "POST 1 KB, CPU of a request", gateway.GATEWAY, None, 250.0),
    Target("G1", "POST 1 KB", gateway.GATEWAY, None, 3_500),
    _most("G1", "p99 of a record", gateway.GATEWAY, gateway.SDK, 2.0),
    Target("G2", "POST 100 × 1 KB", gateway.GATEWAY, None, 50_000),
    _most("G2", "POST 100 × 1 KB, CPU of a record", gateway.GATEWAY, None, 20.0),
    Target("G3", "1 MB of 1 KB records", gateway.GATEWAY, gateway.SDK, 0.7),
    Target("G4", "page of 1,000 × 1 KB, JSON", gateway.GATEWAY, None, 60_000),
    Target("G4", "page of 1,000 × 1 KB, Arrow", gateway.GATEWAY, None, 500_000),
    Target("G5", "events that came", gateway.GATEWAY, None, 45_000),
    _most("G5", "500 listeners, 100 records/s", gateway.GATEWAY, None, 0.5),
    _most("G5", "memory of a listener", gateway.GATEWAY, None, 64.0),
    Target("G6", "lease and ack, 50 a call", gateway.GATEWAY, None, 15_000),
    _most("G7", "transaction of three records, CPU", gateway.GATEWAY, None, 8.0),
    _most(console.ROW, console.SLOWEST, gateway.GATEWAY, None, 1000.0),
    _most(streams_beside.ROW, streams_beside.P99, streams_beside.BESIDE, streams_beside.ALONE, 1.2),
)

"""How far each row is from a limit of the machine that its own run measured. Pure.

A limit is a part of the work that nothing here could do without, done alone: so no value reaches it,
and the distance says how much is left to gain at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench import (
    backlog,
    fairness,
    gateway,
    latency,
    limits,
    long_runs,
    many,
    parquet,
    processes,
    timed,
    transactions,
    visibility,
)
from bench.limits import Limit
from bench.measures import Measure, Results
from bench.throughput import OURS

UNBOUND = {
    "P5": "counts requests: the target is the limit",
    "P6": "waits of the protocol, not the machine",
    "D3": "memory and waits of the protocol",
    "D5": "counts requests: the target is the limit",
    "D6": "compared with RocketMQ, which does the same work",
    "GC": "the pause between two segments bounds it",
    "P12": "memory",
    "Q1": "one PUT after another bounds it: see P4",
    "S1": "waits of the protocol",
    "S2": "requests to a distant store: the page says how long one takes",
    "S4": "memory and waits of the protocol",
    "S5": "requests to a distant store, and the processor time of one broker: the row has both",
    **{f"K{number}": "the same client at both brokers: beside Kafka, or the SDK" for number in range(1, 11)},
    "V1": "compared with confluent-kafka, which does the same work",
    "V2": "compared with confluent-kafka, which does the same work",
    "V6": "the client's own processor time",
    "T2": "waits for nothing but a record's own put: see P8",
    "T3": "compared with the same batches outside of transactions",
    "T4": "counts requests",
    "X1": "compared with the same work without security",
    "X3": "compared with the same principal alone",
    "X4": "processor time of the broker's own code",
    "X5": "processor time of the client's own code",
    "G5": "processor time of gateway and client, on shared cores",
    "G7": "processor time of gateway and client, on shared cores",
    "G8": "processor time of broker, gateway and browser",
    "G9": "compared with the same producer alone",
}
"""Rows whose values no limit of the machine bounds, and why."""


@dataclass(frozen=True, slots=True)
class Distance:
    """`limit`: of `run`, the row that measured it; or another subject of the same measure."""

    row: str
    what: str
    subject: str
    limit: Limit | str
    run: str = ""

    def found(self, results: Results) -> tuple[str, float, float] | None:
        """Return the limit's name, its value in the unit of the measure, and how many times better it is; None if
        one of them was not measured.
        """
        ours = results.of(self.row, self.what, self.subject)
        if isinstance(self.limit, str):
            named, limit = self.limit, results.of(self.row, self.what, self.limit)
        else:
            named = self.limit.what
            limit = results.of(self.run or self.row, self.limit.what, limits.SUBJECT)
        if ours is None or limit is None or not ours.median or not limit.median:
            return None
        assert ours.unit == limit.unit, (self, ours.unit, limit.unit)
        more_is_better = "/s" in ours.unit
        return named, limit.median, limit.median / ours.median if more_is_better else ours.median / limit.median


DISTANCES = (
    *(
        Distance(row, f"produce {size} B", f"{OURS} {via}", limit, "P1")
        for row, size in (("P1", 1000), ("P2", 100))
        for via, limit in (
            ("send", limits.KEEPS),
            ("send_many", limits.ENCODES[size]),
            ("send_batch", limits.ENCODES[size]),
        )
    ),
    *(
        Distance(row, f"consume {size} B", f"{OURS} {via}", limit, "P1")
        for row, size in (("P1", 1000), ("P3", 100))
        for via, limit in (("messages", limits.MAKES), ("arrow", limits.DECODES[size]))
    ),
    *(
        Distance(long_runs.ROW, long_runs.PRODUCE, f"{OURS} {via}", limit.what)
        for via, limit in (("send", limits.KEEPS), ("send_batch", limits.ENCODES[100]))
    ),
    *(
        Distance(long_runs.ROW, long_runs.CONSUME, f"{OURS} {via}", limit.what)
        for via, limit in (("messages", limits.MAKES), ("arrow", limits.DECODES[100]))
    ),
    *(
        Distance("P4", f"acknowledgement at 100/s, {store}, p50", OURS, latency.CALL)
        for store in ("file, fsync", "MinIO", "HDFS")
    ),
    *(
        Distance("P7", f"segments to Parquet, values of {size} B", parquet.COMPACTION, parquet.PLAIN_WRITE)
        for size in parquet.SCANNED
    ),
    *(Distance("P7", parquet.scan(size), parquet.SOURCE, parquet.BARE) for size in parquet.SCANNED),
    Distance("P8", f"since a record was due, {visibility.RATE:.0f}/s, p50", visibility.ACKNOWLEDGED, limits.WRITE),
    Distance("P8", f"since a record was due, {visibility.RATE:.0f}/s, p50", visibility.SEEN, limits.WRITE),
    *(Distance("P9", "broker's CPU, single records", subject, limits.ONE_BY_ONE) for subject in (many.FEW, many.MANY)),
    Distance("P10", backlog.READ, backlog.BESIDE, limits.STREAM),
    Distance("P10", f"acknowledgement at {backlog.RATE:.0f}/s, p50", backlog.BESIDE, limits.WRITE),
    *(
        Distance("P11", "brokers' CPU, end to end", processes.subject(count), limits.ECHOES)
        for count in processes.COUNTS
    ),
    Distance("T1", f"{transactions.COMMIT}, p50", transactions.OURS, transactions.RAW),
    Distance("D1", timed.sending(100), timed.PLAIN, limits.KEEPS),
    Distance("D1", timed.sending(100), timed.TIMED, limits.KEEPS),
    *(Distance("D2", timed.DELIVERED, subject, limits.DECODES[100]) for subject in (timed.APPENDED, timed.READ)),
    Distance("D4", timed.late("p50"), timed.OURS, limits.WRITE),
    Distance(fairness.ROW, fairness.LATENCY[0.5], fairness.ALONE, limits.WRITE),
    *(
        Distance("G1", what, gateway.GATEWAY, floor)
        for what in ("POST 1 KB, CPU of a request", "POST 1 KB")
        for floor in (gateway.ANSWERS, gateway.SENDS)
    ),
    *(
        Distance("G2", what, gateway.GATEWAY, gateway.SENDS)
        for what in ("POST 100 × 1 KB, CPU of a record", "POST 100 × 1 KB")
    ),
    *(
        Distance("G3", what, gateway.GATEWAY, floor)
        for what in ("1 MB of 1 KB records, CPU", "1 MB of 1 KB records")
        for floor in (gateway.ANSWERS, gateway.SENDS)
    ),
    *(
        Distance("G4", f"page of 1,000 × 1 KB, Arrow{what}", gateway.GATEWAY, gateway.PASSES)
        for what in (", CPU of a record", "")
    ),
    Distance("G6", "lease and ack, 50 a call", gateway.GATEWAY, gateway.SDK),
)


def measured(results: Results) -> Iterator[tuple[Distance, Measure, str, float, float]]:
    """Yield the measured distances: with the measure, the limit's name and value, and how many times better it is."""
    for distance in DISTANCES:
        found = distance.found(results)
        measure = results.of(distance.row, distance.what, distance.subject)
        if found is not None and measure is not None:
            yield distance, measure, *found

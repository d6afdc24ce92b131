"""S5: the shape of the OpenMessaging benchmark, at the distance of S3: 64 producers send records of 1 KiB to a topic
of 288 partitions, one group reads everything, and one broker on one core serves both. The clients have the other
core, the store is that of S2.

Without keys, as the benchmark is by default, a producer stays with a partition until its batch is sent; with keys
over all partitions a batch often has one record. Latencies count from `send` until a record is acknowledged, and until
a member of the group has it. *Simulated* is the same load in virtual time, where processors cost nothing. Rates rise
until the 99th percentile of an acknowledgement is above 500 ms.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from bench.afar import SUBJECTS, simulated
from bench.measures import Results
from bench.openmessaging.shape import PARTITIONS, Shape
from bench.openmessaging.simulated import GIB, simulate
from bench.ours import Cluster
from bench.stores import AWAY, stores
from tests.e2e.admin_port import ADMIN

ROW = "S5"
RATES = (5, 20, 50, 100)
P99_MS_MAX = 500.0
SECONDS = 10.0
SIMULATED_S, SETTLING_S = 3.0, 1.0
BROKERS_CORE, CLIENTS_CORE = 0, 1
KINDS = {False: "no keys", True: "keys over all partitions"}


class OpenMessaging:
    def __init__(self, results: Results, scale: float) -> None:
        self._results, self._seconds = results, max(3.0, SECONDS * scale)

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name, stores(Path(name), *SUBJECTS) as roots:
            for store, new_root in roots.items():
                for keyed, kind in KINDS.items():
                    for rate in RATES:
                        if self._bear(Path(name), new_root(), store, rate, keyed, kind) > P99_MS_MAX:
                            break

    def _bear(self, folder: Path, root: str, store: str, rate: int, keyed: bool, kind: str) -> float:
        """Measure one rate; return the 99th percentile of an acknowledgement, in ms."""
        cluster = Cluster(folder, root, 1, *ADMIN, "--no-background-compaction")
        try:
            os.sched_setaffinity(cluster.brokers.running[0].pid, {BROKERS_CORE})
            topic = cluster.new_topic(PARTITIONS)
            before, cpu_s = cluster.bill(), cluster.cpu_s()
            options = {"megabytes_per_s": rate, "keyed": keyed, "seconds": self._seconds, "core": CLIENTS_CORE}
            found = cluster.client("openmessaging", topic, **options)
            bill, cpu_s = cluster.bill().since(before), cluster.cpu_s() - cpu_s
        finally:
            cluster.close()
        subject, what = SUBJECTS[store], f"{kind}, {rate} MB/s"
        sent_bytes = found["records"] * 1024
        whole_bytes = sent_bytes * (1 + Shape(rate).settling_s / self._seconds)
        self._add(what, subject, found["megabytes_per_s"], found["acknowledged_ms"], found["seen_ms"])
        self._results.add(ROW, f"{what}: PUTs", subject, "/GiB", bill.puts * GIB / whole_bytes)
        self._results.add(ROW, f"{what}: requests on S3 would cost", subject, "$/GiB", bill.dollars * GIB / whole_bytes)
        self._results.add(ROW, f"{what}: broker's CPU", subject, "ms/MB", 1000 * cpu_s / (whole_bytes / 1e6))
        seen = simulate(Shape(rate, keyed, SIMULATED_S, SETTLING_S), AWAY[store])
        borne = seen.borne
        self._add(what, simulated(subject), borne.megabytes_per_s, borne.acknowledged_ms, borne.seen_ms)
        self._results.add(ROW, f"{what}: PUTs", simulated(subject), "/GiB", seen.puts_per_gib)
        return float(found["acknowledged_ms"][1])

    def _add(
        self,
        what: str,
        subject: str,
        reached: float,
        acknowledged_ms: tuple[float, float],
        seen_ms: tuple[float, float],
    ) -> None:
        self._results.add(ROW, f"{what}: reached", subject, "MB/s", reached)
        for name, pair in (("acknowledged", acknowledged_ms), ("seen by a consumer", seen_ms)):
            for value, part in zip(pair, ("p50", "p99"), strict=True):
                self._results.add(ROW, f"{what}: {name}, {part}", subject, "ms", value)

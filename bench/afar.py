"""S2: at the distance of S3. The store is MinIO behind a proxy that answers as late as S3 does
(log-normal; S3 Standard: PUT and LIST 60 ms in the median and 250 ms at the 99th percentile, GET 25
and 100 ms; S3 Express: 5 and 15 ms each) and refuses more than 3,500 writes and 5,500 reads a second
of one prefix.

One broker with S3's defaults serves a topic with 8 partitions. A record is acknowledged, and seen
by a consumer at the end of the log, at 100 records a second; then runs of 64 records of 1000 B come
at a steady rate, and the broker counts its requests, with the list prices of S3 Standard. *Simulated*
is the same load on the simulated broker behind docs/sizing.md, which has no processor time. A producer
has five batches of each partition on their way: where a put takes long, the size of batches bounds it.
So *most by one producer* sends records of 1000 B that do not compress as fast as it can, one by one,
and as large Arrow batches. At the end three brokers run, and the owner of most partitions is killed with
SIGKILL again and again.

What others publish about S3, each on its own machines and settings, so only for orders of magnitude:
WarpStream 400 to 600 ms p99 to produce and less than 1.5 s p99 end to end on S3 Standard (AWS
storage blog, 2024), 105 ms p50 and 169 ms p99 on S3 Express (its blog, 2025-04-18); Inkless 1.6 s
p99 end to end at 1 GiB/s (Aiven's blog, Benchmarking Diskless Topics, part 1, 2025).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from bench.measures import Results
from bench.ours import Cluster
from bench.percentiles import at
from bench.sizing.observe import Load, observe
from bench.stores import AWAY, S3_EXPRESS, S3_STANDARD, stores
from bench.takeover import PARTITIONS as TAKEOVER_PARTITIONS
from bench.takeover import WHAT, kill_and_watch
from bench.throughput import rate
from tests.e2e.admin_port import ADMIN

STANDARD, EXPRESS = "S3 Standard", "S3 Express"
SUBJECTS = {S3_STANDARD: STANDARD, S3_EXPRESS: EXPRESS}
RATE, RECORDS = 100.0, 1500
MOST_RECORDS = 300_000
PARTITIONS, BUNDLES = 8, 4
MEGABYTES_PER_S = (5, 20, 50)
SECONDS = 15
KILLS = 20
GIB = 1024**3
PARTS = ((0.5, "p50"), (0.99, "p99"))


def simulated(subject: str) -> str:
    return f"{subject}, simulated"


class Afar:
    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._scale = results, max(1, rounds // 2), scale

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name, stores(Path(name), *SUBJECTS) as roots:
            for store, new_root in roots.items():
                for _ in range(self._rounds):
                    self._steady(Path(name), new_root(), store)
                self._kill(Path(name), new_root(), store)

    def _steady(self, folder: Path, root: str, store: str) -> None:
        cluster = Cluster(folder, root, 1, *ADMIN, "--no-background-compaction")
        subject = SUBJECTS[store]
        try:
            records = int(RECORDS * self._scale)
            found = cluster.client("tail", cluster.new_topic(PARTITIONS), rate=RATE, records=records)
            for what, key in (("acknowledged", "latencies_ms"), ("seen by a consumer", "seen_ms")):
                self._add(f"{what}, {RATE:.0f} records a second", subject, found[key])
            for megabytes_per_s in MEGABYTES_PER_S:
                self._runs(cluster, store, megabytes_per_s)
            records = int(MOST_RECORDS * self._scale)
            for via in ("send", "send_batch"):
                topic = cluster.new_topic(PARTITIONS)
                found = cluster.client("produce", topic, records=records, value_bytes=1000, via=via, values="random")
                self._results.add("S2", f"most by one producer, {via}", subject, "MB/s", rate(found) / 1000)
        finally:
            cluster.close()

    def _runs(self, cluster: Cluster, store: str, megabytes_per_s: int) -> None:
        seconds = max(4.0, SECONDS * self._scale)
        load = Load(megabytes_per_s, PARTITIONS, BUNDLES, seconds, AWAY[store])
        topic, before = cluster.new_topic(PARTITIONS), cluster.bill()
        options = {"partitions": PARTITIONS, "megabytes_per_s": megabytes_per_s, "compression": "none"}
        found = cluster.client("runs", topic, seconds=seconds, **options)
        bill = cluster.bill().since(before)
        seen, subject, at_rate = observe(load), SUBJECTS[store], f"{megabytes_per_s} MB/s"
        gib = megabytes_per_s * 1e6 * seconds / GIB
        self._add(f"acknowledged, {at_rate}", subject, found["latencies_ms"])
        for value, part in ((seen.acknowledged_ms_p50, "p50"), (seen.acknowledged_ms_p99, "p99")):
            self._results.add("S2", f"acknowledged, {at_rate}, {part}", simulated(subject), "ms", value)
        rate = megabytes_per_s * seconds / found["seconds"]
        self._results.add("S2", f"reached of {at_rate}", subject, "MB/s", rate)
        self._results.add("S2", f"PUTs, {at_rate}", subject, "/GiB", bill.puts / gib)
        self._results.add("S2", f"PUTs, {at_rate}", simulated(subject), "/GiB", seen.puts_per_s * seconds / gib)
        self._results.add("S2", f"requests on S3 would cost, {at_rate}", subject, "$/GiB", bill.dollars / gib)

    def _kill(self, folder: Path, root: str, store: str) -> None:
        cluster = Cluster(folder, root, 3)
        try:
            topic = cluster.new_topic(TAKEOVER_PARTITIONS)
            gaps = asyncio.run(kill_and_watch(cluster, topic, max(2, int(KILLS * self._scale))))
        finally:
            cluster.close()
        for part, which in PARTS:
            self._results.add("S2", f"{WHAT}, {which}", SUBJECTS[store], "s", at(sorted(gaps), part))
        print(f"S2: {store}: gaps {[round(gap, 2) for gap in sorted(gaps)]}", file=sys.stderr)

    def _add(self, what: str, subject: str, values_ms: list[float]) -> None:
        for part, which in PARTS:
            self._results.add("S2", f"{what}, {which}", subject, "ms", at(values_ms, part))

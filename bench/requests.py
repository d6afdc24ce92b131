"""P5: what the store is asked for: PUTs a flush, PUTs a GiB, and dollars a TB, whatever the number of partitions.

Counted by the broker itself, while one client sends at one rate spread evenly over all partitions. The store is a folder, but the broker
flushes as it does on S3 (a segment of a bundle every 100 ms at most) and is told S3's prices, so the bill is the one that S3 would send.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.measures import Curve, Results
from bench.ours import Cluster
from bench.store_bill import OPTIONS
from stateless_broker.settings import SPACING_MS

VALUE_BYTES = 1000
MEGABYTES_PER_S = 20.0
SECONDS = 12
PARTITIONS = (1, 8, 100, 1000, 10_000)
"""One lies in one bundle; all others use the four bundles of a new cluster."""
MIB = 1024 * 1024


def subject(partitions: int) -> str:
    return f"{partitions:,} partition{'s' if partitions > 1 else ''}"


class Requests:
    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds = results, max(1, rounds // 2)
        self._records = int(MEGABYTES_PER_S * 1e6 / VALUE_BYTES * max(4, SECONDS * scale))
        self._partitions = PARTITIONS if scale >= 1 else (1, 8, 1000)

    def run(self) -> None:
        for _ in range(self._rounds):
            for partitions in self._partitions:
                with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
                    self._count(Path(name), partitions)
        prices = [self._results.of("P5", "requests on S3 would cost", subject(n)) for n in self._partitions]
        points = [(float(n), found.median) for n, found in zip(self._partitions, prices, strict=True) if found is not None]
        self._results.curves.append(Curve("P5", "dollars a TB", "LedgerMQ", points))

    def _count(self, folder: Path, partitions: int) -> None:
        (folder / "root").mkdir()
        spacing = ("--flush-spacing-ms", str(SPACING_MS["s3"]))
        cluster = Cluster(folder, (folder / "root").as_uri(), 1, *OPTIONS, *spacing, "--no-background-compaction")
        try:
            topic = cluster.new_topic(partitions)
            before, cpu_s = cluster.bill(), cluster.cpu_s()
            options = {"via": "spread", "partitions": partitions, "values": "random", "megabytes_per_s": MEGABYTES_PER_S}
            cluster.client("produce", topic, records=self._records, value_bytes=VALUE_BYTES, **options)
            bill, cpu_s = cluster.bill().since(before), cluster.cpu_s() - cpu_s
            rss_bytes = cluster.rss_bytes()
        finally:
            cluster.close()
        sent_bytes = self._records * VALUE_BYTES
        puts = bill.requests["put_if_absent"]
        for what, unit, value in (
            ("segments put", "PUT/GiB", puts / (sent_bytes / 2**30)),
            ("PUTs a flush", "PUT", puts / bill.flushes),
            ("requests on S3 would cost", "$/TB", bill.dollars / sent_bytes * 1e12),
            ("broker's CPU", "ms/MB", 1000 * cpu_s / (sent_bytes / 1e6)),
            ("broker's memory", "MiB", rss_bytes / MIB),
        ):
            self._results.add("P5", what, subject(partitions), unit, value)

"""P5: requests to the store: PUTs a flush, PUTs a GiB, and dollars a TB, by the number of
partitions.

The broker itself counts them, with S3's defaults and prices, while one client sends 20 MB a second,
in runs of 64 records of 1000 B to one partition after the other. The store is MinIO behind a
connection as slow as that to S3, because the number of segments depends on the duration of a put.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.measures import Curve, Results
from bench.ours import Cluster, answer
from bench.runs import RUN_RECORDS, VALUE_BYTES
from bench.stores import DISTANT, stores
from tests.e2e.admin_port import ADMIN

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
        self._partitions = PARTITIONS if scale >= 1 else (8, 1000)

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name, stores(Path(name), DISTANT) as roots:
            if DISTANT not in roots:
                return
            for _ in range(self._rounds):
                for partitions in self._partitions:
                    self._count(Path(name), roots[DISTANT](), partitions)
        prices = [(n, self._results.of("P5", "requests on S3 would cost", subject(n))) for n in self._partitions]
        points = [(float(n), found.median) for n, found in prices if found is not None]
        self._results.curves.append(Curve("P5", "dollars a TB", "LedgerMQ", points))

    def _count(self, folder: Path, root: str, partitions: int) -> None:
        cluster = Cluster(folder, root, 1, *ADMIN, "--no-background-compaction")
        try:
            topic = cluster.new_topic(partitions)
            options = {"via": "spread", "partitions": partitions, "run_records": RUN_RECORDS, "values": "random"}
            options |= {"records": self._records, "value_bytes": VALUE_BYTES, "megabytes_per_s": MEGABYTES_PER_S}
            client = cluster.start_warm_client("produce", topic, **options)
            before, cpu_s = cluster.bill(), cluster.cpu_s()
            done = answer(client)
            bill, cpu_s = cluster.bill().since(before), cluster.cpu_s() - cpu_s
            rss_bytes = cluster.rss_bytes()
        finally:
            cluster.close()
        sent_bytes = self._records * VALUE_BYTES
        puts = bill.requests["put_if_absent"]
        for what, unit, value in (
            ("rate that was reached", "MB/s", sent_bytes / 1e6 / done["seconds"]),
            ("segments put", "PUT/GiB", puts / (sent_bytes / 2**30)),
            ("PUTs a flush", "PUT", puts / bill.flushes),
            ("requests on S3 would cost", "$/TB", bill.dollars / sent_bytes * 1e12),
            ("broker's CPU", "ms/MB", 1000 * cpu_s / (sent_bytes / 1e6)),
            ("broker's memory", "MiB", rss_bytes / MIB),
        ):
            self._results.add("P5", what, subject(partitions), unit, value)

"""P5: what the store is asked for: PUTs a flush, PUTs a GiB, and dollars a TB, whatever the number of partitions.

Counted by the broker itself (`ledgermq_store_requests_total`), while one client sends the same bytes spread evenly over all partitions.
"""

from __future__ import annotations

import re
import tempfile
import urllib.request
from pathlib import Path

from bench.measures import Measure, Results
from bench.ours import Cluster
from infra.ports import free_port

SUBJECT = "LedgerMQ"
MIB = 1024 * 1024
DOLLARS_PER_PUT, DOLLARS_PER_GET = 5.0e-6, 4.0e-7
"""S3 standard, us-east-1."""


class Requests:
    def __init__(self, results: Results, scale: float) -> None:
        self._results = results
        self._mib = int(512 * scale)
        self._partitions = (1, 10, 100, 1000, 10_000) if scale >= 1 else (1, 100, 1000)

    def run(self) -> None:
        for partitions in self._partitions:
            with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
                self._count(Path(name), partitions)

    def _count(self, folder: Path, partitions: int) -> None:
        (folder / "root").mkdir()
        port = free_port()
        cluster = Cluster(folder, (folder / "root").as_uri(), 1, "--admin-port", str(port), "--no-background-compaction")
        try:
            topic = cluster.new_topic(partitions)
            before, cpu_s = _counters(port), cluster.cpu_s()
            records = self._mib * MIB // 1000
            cluster.client("produce", topic, records=records, value_bytes=1000, via="spread", partitions=partitions, values="random")
            after, cpu_s = _counters(port), cluster.cpu_s() - cpu_s
            rss = cluster.rss_bytes()
        finally:
            cluster.close()
        counted = {name: after[name] - before.get(name, 0.0) for name in after}
        puts = counted.get("put_if_absent", 0.0)
        gets = sum(counted.get(name, 0.0) for name in ("get", "get_range", "get_tail"))
        gib = records * 1000 / 2**30
        what = f"{partitions:,} partitions"
        dollars = (puts * DOLLARS_PER_PUT + gets * DOLLARS_PER_GET) / (records * 1000) * 1e12
        for measured, unit, value in (
            ("segments put", "PUT/GiB", puts / gib),
            ("requests on S3 would cost", "$/TB", dollars),
            ("broker's CPU", "ms/MB", 1000 * cpu_s / (records * 1000 / 1e6)),
            ("broker's memory", "MiB", rss / MIB),
        ):
            self._results.measures.append(Measure("P5", f"{measured}, {what}", SUBJECT, unit, [value]))


def _counters(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        text = page.read().decode()
    found = re.findall(r'^ledgermq_store_requests_total\{[^}]*operation="([a-z_]+)"[^}]*\} ([\d.e+]+)$', text, re.MULTILINE)
    counted: dict[str, float] = {}
    for operation, value in found:
        counted[operation] = counted.get(operation, 0.0) + float(value)
    return counted

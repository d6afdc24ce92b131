"""GC: benefit and cost of the pause between two segments of a bundle (`flush_spacing_ms`):
throughput, latency and PUTs, by store.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.measures import Curve, Results
from bench.ours import Cluster
from bench.percentiles import at
from bench.stores import DISTANT, FILE, MINIO, stores
from tests.e2e.admin_port import ADMIN

SPACINGS_MS = (0, 10, 30, 100, 300)
RATE, PACED_RECORDS = 100.0, 400
RECORDS, VALUE_BYTES, PARTITIONS = 200_000, 1000, 8


class GroupCommit:
    """One round for each setting, because the result is a curve, not a comparison."""

    def __init__(self, results: Results, scale: float) -> None:
        self._results, self._records, self._paced = results, int(RECORDS * scale), int(PACED_RECORDS * max(0.5, scale))
        self._spacings_ms = SPACINGS_MS if scale >= 1 else (0, 100)
        self._stores = (FILE, MINIO, DISTANT) if scale >= 1 else (FILE,)

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name, stores(Path(name), *self._stores) as roots:
            for store, new_root in roots.items():
                points = [self._measure(Path(name), new_root(), store, spacing_ms) for spacing_ms in self._spacings_ms]
                marks = [f"{spacing_ms}" for spacing_ms in self._spacings_ms]
                self._results.curves.append(Curve("GC", "throughput against latency", store, points, marks))

    def _measure(self, folder: Path, root: str, store: str, spacing_ms: int) -> tuple[float, float]:
        """Return (median latency in ms at 100 records a second, MB/s at full speed)."""
        cluster = Cluster(folder, root, 1, *ADMIN, "--flush-spacing-ms", str(spacing_ms), "--no-background-compaction")
        try:
            topic = cluster.new_topic(PARTITIONS)
            before = cluster.bill()
            paced = cluster.client("produce", topic, rate=RATE, records=self._paced)
            bill = cluster.bill().since(before)
            full = cluster.client("produce", topic, records=self._records, value_bytes=VALUE_BYTES, via="send_batch")
        finally:
            cluster.close()
        subject = f"{store}, spacing {spacing_ms} ms"
        latency_ms, rate = at(paced["latencies_ms"], 0.5), full["records"] * VALUE_BYTES / 1e6 / full["seconds"]
        self._results.add("GC", "acknowledgement at 100/s, p50", subject, "ms", latency_ms)
        self._results.add(
            "GC", "PUTs at 100 records a second", subject, "PUT/s", bill.requests["put_if_absent"] / paced["seconds"]
        )
        self._results.add("GC", "produce at full speed", subject, "MB/s", rate)
        return latency_ms, rate

"""P8: the time until a record is visible: to a running Spark stream, after its acknowledgement; to a
tailing consumer, beside its acknowledgement.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.measures import Results
from bench.ours import Cluster
from bench.parquet import answer_of
from bench.percentiles import at
from infra import java

RATE = 100.0
RECORDS = 1500
STREAM_SECONDS = 20
PARTITIONS = 8
ACKNOWLEDGED, SEEN = "acknowledged", "seen by a consumer"


class Visibility:
    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._scale = results, rounds, scale

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
            folder = Path(name)
            (folder / "root").mkdir()
            cluster = Cluster(folder, (folder / "root").as_uri())
            try:
                for _ in range(self._rounds):
                    self._tail(cluster)
            finally:
                cluster.close()
        if self._scale < 1 or java.installed() is None:
            print("P8: no Java, or too little time, so no Spark stream", file=sys.stderr)
            return
        for _ in range(max(1, self._rounds // 2)):
            with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
                found = answer_of("bench.freshness", f"file://{name}/root", "--seconds", str(STREAM_SECONDS))
            for which in ("p50", "p99"):
                self._results.add(
                    "P8", f"acknowledged until in a Spark stream, {which}", "LedgerMQ", "s", found[f"{which}_s"]
                )

    def _tail(self, cluster: Cluster) -> None:
        found = cluster.client("tail", cluster.new_topic(PARTITIONS), rate=RATE, records=int(RECORDS * self._scale))
        for part, which in ((0.5, "p50"), (0.99, "p99")):
            what = f"since a record was due, {RATE:.0f}/s, {which}"
            self._results.add("P8", what, ACKNOWLEDGED, "ms", at(found["latencies_ms"], part))
            self._results.add("P8", what, SEEN, "ms", at(found["seen_ms"], part))

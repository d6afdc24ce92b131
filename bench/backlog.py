"""P10: the effect on producers at the tail of a reader that drains a backlog far larger than the
broker's cache.

python -m bench.run --only P10 --backlog-mb 20000

The backlog is in segments (compaction is off, because its load would vary), so every byte of it is
read from the store. When the reader reaches the end it begins again, as long as the producer
runs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.measures import Results
from bench.ours import Cluster, answer
from bench.percentiles import at
from stateless_broker.settings import load_settings

RATE = 100.0
RECORDS = 1000
PARTITIONS = 8
BACKLOG_MB = 2000
ALONE, BESIDE = "alone", "beside a reader of the backlog"


class Backlog:
    def __init__(self, results: Results, rounds: int, scale: float, megabytes: int | None = None) -> None:
        self._results, self._rounds, self._records = results, rounds, int(RECORDS * max(0.5, scale))
        self._megabytes = megabytes or int(BACKLOG_MB * max(0.25, scale))
        assert self._megabytes * 1_000_000 > load_settings().cache_bytes_max, (
            "a backlog that fits the cache shows nothing"
        )

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
            folder = Path(name)
            (folder / "root").mkdir()
            cluster = Cluster(folder, (folder / "root").as_uri(), 1, "--no-background-compaction")
            try:
                self._results.add("P10", "backlog", "LedgerMQ", "GB", self._megabytes / 1000)
                full = cluster.new_topic(PARTITIONS)
                cluster.client("produce", full, records=self._megabytes * 1000, value_bytes=1000, values="random")
                tail = cluster.new_topic(PARTITIONS)
                for _ in range(self._rounds):
                    self._add(ALONE, cluster.client("produce", tail, rate=RATE, records=self._records)["latencies_ms"])
                    reader = cluster.start_client("drain", full, seconds=self._records / RATE + 3)
                    self._add(BESIDE, cluster.client("produce", tail, rate=RATE, records=self._records)["latencies_ms"])
                    read = answer(reader)
                    self._results.add(
                        "P10", "the reader's rate", BESIDE, "MB/s", read["records"] / 1000 / read["seconds"]
                    )
            finally:
                cluster.close()

    def _add(self, subject: str, latencies_ms: list[float]) -> None:
        for part, which in ((0.5, "p50"), (0.99, "p99")):
            self._results.add("P10", f"acknowledgement at {RATE:.0f}/s, {which}", subject, "ms", at(latencies_ms, part))

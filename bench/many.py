"""P9: one broker with very many partitions under load, with very many clients, and while idle."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measures import Results
from bench.ours import Cluster, answer
from tests.e2e.admin_port import ADMIN

FEW, MANY = "8 partitions", "10,000 partitions"
PARTITIONS = {FEW: 8, MANY: 10_000}
VALUE_BYTES, MEGABYTES_PER_S = 1000, 20.0
RUNS = {64: "runs of 64 records", 1: "single records"}
LOAD_S = {64: 10, 1: 1}
CLIENTS, CLIENTS_A_PROCESS = 1000, 250
IDLE_S = 60
MIB = 1024 * 1024
SUBJECT = "LedgerMQ"


class Many:
    """Load: values of 1000 B that do not compress, 20 MB a second, to one partition after the
    other, with every default of the broker; once in runs of 64 records, which shows what partitions
    cost, and once one record each, which shows what tiny batches cost."""

    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._scale = results, rounds, scale

    def run(self) -> None:
        for _ in range(max(1, self._rounds // 2)):
            for subject in PARTITIONS:
                for run_records in RUNS:
                    with broker() as cluster:
                        self._load(cluster, subject, run_records)
        with broker() as cluster:
            self._crowd(cluster)
        with broker() as cluster:
            self._idle(cluster)

    def _load(self, cluster: Cluster, subject: str, run_records: int) -> None:
        topic = cluster.new_topic(PARTITIONS[subject])
        records = int(MEGABYTES_PER_S * 1e6 / VALUE_BYTES * LOAD_S[run_records] * self._scale)
        options = {"via": "spread", "partitions": PARTITIONS[subject], "run_records": run_records, "values": "random"}
        options |= {"records": records, "value_bytes": VALUE_BYTES, "megabytes_per_s": MEGABYTES_PER_S}
        client = cluster.start_warm_client("produce", topic, **options)
        cpu_s = cluster.cpu_s()
        done = answer(client)
        cpu_ms, megabytes = 1000 * (cluster.cpu_s() - cpu_s), records * VALUE_BYTES / 1e6
        load = RUNS[run_records]
        self._results.add("P9", f"rate that was reached, {load}", subject, "MB/s", megabytes / done["seconds"])
        self._results.add("P9", f"broker's CPU, {load}", subject, "ms/MB", cpu_ms / megabytes)
        self._results.add("P9", f"broker's memory, {load}", subject, "MiB", cluster.rss_bytes() / MIB)

    def _crowd(self, cluster: Cluster) -> None:
        topic = cluster.new_topic(8)
        clients = int(CLIENTS * max(0.25, self._scale))
        each = min(clients, CLIENTS_A_PROCESS)
        command = [sys.executable, "-m", "bench.crowd", cluster.brokers.addresses, topic, "--clients", str(each)]
        crowd = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(clients // each)
        ]
        try:
            for process in crowd:
                assert process.stdout is not None
                if process.stdout.readline() != b"connected\n":
                    raise RuntimeError("a client could not connect")
            self._results.add(
                "P9", "broker's memory with clients", f"{clients:,} clients", "MiB", cluster.rss_bytes() / MIB
            )
        finally:
            for process in crowd:
                process.communicate(timeout=60)

    def _idle(self, cluster: Cluster) -> None:
        """Measure after some records, with no further load; heartbeats are counted separately,
        because their number depends on brokers.
        """
        bundles = 5
        topic = cluster.new_topic(8)
        cluster.client("produce", topic, records=1000, value_bytes=100)
        seconds = max(10.0, IDLE_S * self._scale)
        time.sleep(5)  # checkpoints and compaction of what was just sent
        before = cluster.bill()
        time.sleep(seconds)
        bill = cluster.bill().since(before)
        self._results.add(
            "P9", "idle for a minute", SUBJECT, "requests/bundle", bill.beside_heartbeats / bundles * 60 / seconds
        )
        self._results.add(
            "P9", "idle for a minute, heartbeats", SUBJECT, "requests/broker", bill.heartbeats * 60 / seconds
        )


@contextmanager
def broker() -> Iterator[Cluster]:
    """Start one broker on an empty folder."""
    with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
        folder = Path(name)
        (folder / "root").mkdir()
        cluster = Cluster(folder, (folder / "root").as_uri(), 1, *ADMIN)
        try:
            yield cluster
        finally:
            cluster.close()

"""P12: the cost for a broker of 1,000 readers that take 1 KB a second, and the rate of one fast
reader beside them.

The values have 1000 B and do not compress, batches have up to 1 MiB, and all settings are defaults.
The memory is the peak of the broker's process while a producer wrote 20 MB a second and the slow
readers waited. The fast reader is a new consumer that reads the topic from memory.
"""

from __future__ import annotations

import subprocess
import sys
import time

from bench.many import broker
from bench.measures import Results
from bench.ours import Cluster

READERS, READERS_A_PROCESS = 1000, 250
PARTITIONS = 8
RECORDS, VALUE_BYTES = 200_000, 1000
PRODUCE_S, MEGABYTES_PER_S = 20, 20.0
SETTLE_S = 60
"""Until the slow readers stand in line, or their connections were broken by those behind them."""
MIB = 1024 * 1024
ALONE, MEMORY = "alone", "broker's memory with slow readers"


def beside(readers: int) -> str:
    return f"{readers:,} slow readers"


class Slow:
    def __init__(self, results: Results, rounds: int, scale: float, readers: int = READERS) -> None:
        self._results, self._rounds = results, rounds
        self._readers = max(READERS_A_PROCESS, int(readers * scale))

    def run(self) -> None:
        for _ in range(max(1, self._rounds // 2)):
            with broker() as cluster:
                self._measure(cluster)

    def _measure(self, cluster: Cluster) -> None:
        topic = cluster.new_topic(PARTITIONS)
        cluster.client("produce", topic, records=RECORDS, value_bytes=VALUE_BYTES, values="random", via="send_batch")
        self._consume(cluster, topic, ALONE)
        command = [
            sys.executable,
            "-m",
            "bench.slow_readers",
            cluster.brokers.addresses,
            topic,
            "--readers",
            str(READERS_A_PROCESS),
        ]
        count = self._readers // READERS_A_PROCESS
        crowd = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
        try:
            for process in crowd:
                assert process.stdout is not None
                if process.stdout.readline() != b"connected\n":
                    raise RuntimeError("a slow reader could not connect")
            time.sleep(SETTLE_S)
            self._consume(cluster, topic, beside(self._readers))
            options = {
                "via": "spread",
                "partitions": PARTITIONS,
                "run_records": 64,
                "values": "random",
                "value_bytes": VALUE_BYTES,
            }
            options |= {
                "records": int(PRODUCE_S * MEGABYTES_PER_S * 1e6 / VALUE_BYTES),
                "megabytes_per_s": MEGABYTES_PER_S,
            }
            producer, most = cluster.start_client("produce", topic, **options), 0
            while producer.poll() is None:
                most = max(most, cluster.rss_bytes())
                time.sleep(0.2)
            self._results.add("P12", MEMORY, beside(self._readers), "MiB", most / MIB)
        finally:
            for process in crowd:
                process.kill()
                process.wait()

    def _consume(self, cluster: Cluster, topic: str, subject: str) -> None:
        done = cluster.client("consume", topic, records=RECORDS, via="arrow")
        self._results.add("P12", "consume 1000 B", subject, "records/s", done["records"] / done["seconds"])

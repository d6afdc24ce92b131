"""P10: the effect on producers at the tail of a reader that drains a backlog far larger than the
broker's cache.

python -m bench.run --only P10 --backlog-mb 20000

The backlog is in segments (compaction is off, because its load would vary), so every byte of it is
read from the store. When the reader reaches the end it begins again, as long as the producer
runs. Kafka holds the same backlog in its log, and the page cache of this machine holds both. Its reader
is paced to the rate that LedgerMQ's reached in the same round, and its producer sends each record at
once (confluent-kafka, no linger), with an fsync for each.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.load import payloads_in
from bench.measures import Results
from bench.ours import Cluster, answer
from bench.peers import confluent, kafka
from bench.percentiles import at
from ledgermq_broker.settings.processes import load_settings

RATE = 100.0
RECORDS = 1000
PARTITIONS = 8
BACKLOG_MB = 2000
VALUE_BYTES = 1000
ALONE, BESIDE = "alone", "beside a reader of the backlog"
PEER_ALONE, PEER_BESIDE = (f"{confluent.SUBJECT}, {which}" for which in (ALONE, BESIDE))
READ = "the reader's rate"


class Backlog:
    def __init__(self, results: Results, rounds: int, scale: float, megabytes: int | None = None) -> None:
        self._results, self._rounds, self._records = results, rounds, int(RECORDS * max(0.5, scale))
        self._megabytes = megabytes or int(BACKLOG_MB * max(0.25, scale))
        assert self._megabytes * 1_000_000 > load_settings().cache_bytes_max, (
            "a backlog that fits the cache shows nothing"
        )

    def run(self) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledgermq-bench-")))
            (folder / "root").mkdir()
            (folder / "kafka").mkdir()
            payloads = payloads_in(folder, VALUE_BYTES)
            cluster = Cluster(folder, (folder / "root").as_uri(), 1, "--no-background-compaction")
            stack.callback(cluster.close)
            peer = stack.enter_context(confluent.running(stack.enter_context(kafka.running(folder / "kafka"))))
            self._results.add("P10", "backlog", "LedgerMQ", "GB", self._megabytes / 1000)
            full = cluster.new_topic(PARTITIONS)
            cluster.client("produce", full, records=self._megabytes * 1000, value_bytes=VALUE_BYTES, values="random")
            tail, peer_full, peer_tail = cluster.new_topic(PARTITIONS), peer.new_topic(), peer.new_topic()
            peer.produce(peer_full, self._megabytes * 1000, payloads)
            for _ in range(self._rounds):
                self._add(ALONE, cluster.client("produce", tail, rate=RATE, records=self._records)["latencies_ms"])
                reader = cluster.start_client("drain", full, seconds=self._seconds)
                self._add(BESIDE, cluster.client("produce", tail, rate=RATE, records=self._records)["latencies_ms"])
                read = answer(reader)
                rate = read["records"] * VALUE_BYTES / 1e6 / read["seconds"]
                self._results.add("P10", READ, BESIDE, "MB/s", rate)
                self._add(PEER_ALONE, peer.paced(peer_tail, self._records, RATE, payloads))
                with peer.draining(peer_full, rate, self._seconds) as rate_of_peer:
                    self._add(PEER_BESIDE, peer.paced(peer_tail, self._records, RATE, payloads))
                    self._results.add("P10", READ, PEER_BESIDE, "MB/s", rate_of_peer())

    @property
    def _seconds(self) -> float:
        """How long a reader drains."""
        return self._records / RATE + 3

    def _add(self, subject: str, latencies_ms: list[float]) -> None:
        for part, which in ((0.5, "p50"), (0.99, "p99")):
            self._results.add("P10", f"acknowledgement at {RATE:.0f}/s, {which}", subject, "ms", at(latencies_ms, part))

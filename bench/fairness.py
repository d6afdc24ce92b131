"""X2: what is left for one principal beside another that floods.

One broker on local files with fsync and access rules. *Calm* sends 100 records of 100 B a second by one
connection; each counts from the time at which it was to be sent until its acknowledgement. *Flood* keeps
16 producers full, each with 16 MiB, which is all that a broker has by default for records that wait for
the store. With a quota it may send 20 MB/s. Two floods at once, one by 16 connections and one by a
single one, should get the same share of what the broker can store.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import ledgermq.sync
from bench.measures import Results
from bench.ours import Cluster, stop_client, wait_until_warm
from bench.percentiles import at, latencies_within

ROW = "X2"
CALM, FLOOD, OTHER = "calm", "flood", "other"
ALONE, BESIDE, BESIDE_QUOTA = "alone", "beside a flood", "beside a flood with a quota"
LATENCY = {part: f"acknowledgement at 100/s, {name}" for part, name in ((0.5, "p50"), (0.99, "p99"))}
P99 = LATENCY[0.99]
SHARE, ONE_CONNECTION = "share of two floods", "by one connection, beside 16"
RATE, CONNECTIONS, PARTITIONS, SECONDS, SETTLE_S = 100.0, 16, 8, 10.0, 2.0
QUOTA_BYTES_PER_S = 20_000_000
RATE_OF_FLOOD = "bytes that a flood stores"


class Fair:
    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._seconds = results, rounds, max(3.0, SECONDS * scale)

    def run(self) -> None:
        """Each round has another root, because the floods of one write some 20 GB."""
        for _ in range(self._rounds):
            self._round()

    def _round(self) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledgermq-bench-")))
            root = folder / "root"
            root.mkdir()
            tokens = _tokens(root.as_uri())
            cluster = Cluster(folder, root.as_uri(), 1, "--security=rules", token=tokens[CALM])
            stack.callback(cluster.close)
            self._latencies(cluster, tokens)
            self._shares(cluster, tokens)

    def _latencies(self, cluster: Cluster, tokens: dict[str, str]) -> None:
        for name, token in ((ALONE, ""), (BESIDE, tokens[OTHER]), (BESIDE_QUOTA, tokens[FLOOD])):
            calm = cluster.start_client("live", cluster.new_topic(PARTITIONS), rate=RATE)
            wait_until_warm(calm)
            flood = self._flood(cluster, token, CONNECTIONS) if token else None
            time.sleep(SETTLE_S)
            begin_s = time.time()
            time.sleep(self._seconds)
            end_s = time.time()
            found = latencies_within(stop_client(calm)["latencies"], begin_s, end_s)
            for part, what in LATENCY.items():
                self._results.add(ROW, what, name, "ms", at(found, part))
            if flood is not None:
                self._results.add(ROW, RATE_OF_FLOOD, name, "MB/s", _rate(stop_client(flood)["acknowledged"]))

    def _shares(self, cluster: Cluster, tokens: dict[str, str]) -> None:
        floods = [self._flood(cluster, tokens[CALM], 1), self._flood(cluster, tokens[OTHER], CONNECTIONS)]
        time.sleep(SETTLE_S + self._seconds)
        one, many = (_rate(stop_client(flood)["acknowledged"]) for flood in floods)
        self._results.add(ROW, SHARE, ONE_CONNECTION, "of 1", one / (one + many))

    def _flood(self, cluster: Cluster, token: str, connections: int) -> subprocess.Popen[str]:
        topic = cluster.new_topic(PARTITIONS)
        flood = cluster.start_client("flood", topic, token=token, connections=connections)
        wait_until_warm(flood)
        return flood


def _rate(acknowledged: list[tuple[float, int]]) -> float:
    """Return MB/s between the first and the last acknowledgement."""
    times_s = [at_s for at_s, _ in acknowledged]
    return sum(size for _, size in acknowledged) / 1e6 / max(1.0, max(times_s) - min(times_s))


def _tokens(root: str) -> dict[str, str]:
    """Return a token of each principal; they may all do the same, and the quota binds one of them."""
    with ledgermq.sync.connect(root) as client:
        for name in (CALM, FLOOD, OTHER):
            client.access.grant(f"user:{name}", "produce,consume,create,describe", "*")
        client.quotas.set(f"user:{FLOOD}", bytes_in=QUOTA_BYTES_PER_S)
        return {name: client.access.create_token(name).token for name in (CALM, FLOOD, OTHER)}

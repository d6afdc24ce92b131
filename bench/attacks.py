"""X3: what is left for a well-behaved principal beside each of ten floods by hostile programs.

One broker on local files with fsync, access rules and an admin port. *Calm* sends 100 records of 100 B a
second by one connection; each counts from the time at which it was to be sent until its acknowledgement.
The first four floods have no credential, the others a token with rights on their own topics only. The
memory is what the broker has at most during a flood, above what it had before.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import ledgermq.sync
from bench.attacker import KINDS, OWN
from bench.measures import Results
from bench.ours import Cluster, stop_client, wait_until_warm
from bench.percentiles import at, latencies_within
from tests.e2e.admin_port import ADMIN, AdminPort

ROW = "X3"
ALONE = "alone"
FLOODS = {
    "watches": "streams of health",
    "headers": "headers without a request",
    "resets": "calls that are reset at once",
    "refused": "calls that are refused",
    "halves": "requests that never end",
    "lists": "lists that are too long",
    "admin": "idle connections to the admin port",
    "ids": "ids of messages",
    "streams": "fetch streams",
    "pings": "pings",
}
assert tuple(FLOODS) == KINDS
P99, MEMORY = "p99 of an acknowledgement at 100/s", "memory beside a flood"
RATE, PARTITIONS, SECONDS, SETTLE_S = 100.0, 4, 8.0, 1.0


class Attacked:
    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._seconds = results, rounds, max(3.0, SECONDS * scale)

    def run(self) -> None:
        """Each flood has its own root, so that none leaves anything to the next one."""
        for _ in range(self._rounds):
            for kind in ("", *FLOODS):
                self._beside(kind)

    def _beside(self, kind: str) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledgermq-bench-")))
            (folder / "root").mkdir()
            calm_token, hostile_token = _tokens((folder / "root").as_uri())
            cluster = Cluster(folder, (folder / "root").as_uri(), 1, "--security=rules", *ADMIN, token=calm_token)
            stack.callback(cluster.close)
            calm = cluster.start_client("live", cluster.new_topic(PARTITIONS), rate=RATE)
            wait_until_warm(calm)
            time.sleep(SETTLE_S)
            name = FLOODS.get(kind, ALONE)
            before, most = cluster.rss_bytes(), _Most(cluster)
            flood = self._flood(cluster, kind, hostile_token) if kind else None
            if flood is not None:
                wait_until_warm(flood)
            begin_s = time.time()
            most.follow(self._seconds + SETTLE_S)
            end_s = time.time()
            found = latencies_within(stop_client(calm)["latencies"], begin_s, end_s)
            self._results.add(ROW, P99, name, "ms", at(found, 0.99))
            self._results.add(ROW, MEMORY, name, "MB", max(0, most.bytes - before) / 1e6)
            if flood is not None:
                flood.wait(timeout=120)

    def _flood(self, cluster: Cluster, kind: str, token: str) -> subprocess.Popen[str]:
        broker = cluster.brokers.running[0]
        options = [f"--token={token}", f"--admin={AdminPort(broker).address}", f"--seconds={self._seconds}"]
        command = [sys.executable, "-m", "bench.attacker", kind, broker.address, *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class _Most:
    """The most memory that a cluster's broker has in a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.bytes = 0

    def follow(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.bytes = max(self.bytes, self._cluster.rss_bytes())
            time.sleep(0.05)


def _tokens(root: str) -> tuple[str, str]:
    """Return a token that may use all topics, and one that may use its own only."""
    with ledgermq.sync.connect(root) as client:
        client.access.grant("user:calm", "produce,consume,create,describe", "*")
        client.access.grant("user:hostile", "produce,consume,create,describe,alter,delete", f"{OWN}*")
        return client.access.create_token("calm").token, client.access.create_token("hostile").token

"""X3: what is left for a well-behaved principal beside each of some floods by hostile programs.

One broker on local files with fsync, access rules and an admin port. *Calm* sends 100 records of 100 B a
second by one connection; each counts from the time at which it was to be sent until its acknowledgement.
The first four floods have no credential, the others a token with rights on their own topics only. The
memory is what the broker has at most during a flood, above what it had before. Floods of the port for
Kafka clients are those of `tests.attacks.kafka_flood`. For floods of the HTTP gateway, `tests.attacks.http_flood`
with 500 connections, a record is also sent by the gateway, 20 times a second.

No flood stops the others. Most targets are missed because the broker is one interpreter: what a flood sends is read,
decoded and, with a right to it, done on the processor that serves *calm*. Its rules share the turns; they take
no time from a flood that sends within its rights. The hostile program has the second of the machine's two cores, and
competes there with *calm*. The 99th percentile of one round of seven seconds is its seventh longest wait, so one
standstill at the beginning of a flood decides it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx

import ledgermq.sync
from bench.attacker import KINDS, OWN, OWN_TOPIC
from bench.measures import Results
from bench.ours import Cluster, stop_client, wait_until_warm
from bench.percentiles import at, latencies_within
from tests.attacks.kafka_flood import OWN as OWN_OF_KAFKA
from tests.e2e.admin_port import ADMIN, AdminPort
from tests.e2e.processes import BrokerProcess
from tests.waiting import wait_until

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
    "woken": "fetch streams that each append wakes",
    "pings": "pings",
    "calls": "complete calls",
    "frames": "small batches on streams",
}
assert tuple(FLOODS) == KINDS
assert OWN_TOPIC == OWN_OF_KAFKA
KAFKA_FLOODS = {
    "requests": "requests of the Kafka protocol",
    "lists": "long lists of the Kafka protocol",
    "batches": "many batches of the Kafka protocol",
    "tokens": "wrong tokens at the Kafka port",
    "halves": "requests of the Kafka protocol that never end",
    "silent": "Kafka readers that take nothing",
}
HTTP_FLOODS = {"http": "requests to the gateway", "http_tokens": "wrong tokens at the gateway"}
KINDS_OF_KAFKA = {f"kafka {kind}": kind for kind in KAFKA_FLOODS}
ALL = FLOODS | {kind: KAFKA_FLOODS[name] for kind, name in KINDS_OF_KAFKA.items()} | HTTP_FLOODS
assert len(ALL) == len(FLOODS) + len(KAFKA_FLOODS) + len(HTTP_FLOODS), "two floods have one name"
P99_HTTP = "p99 of a record by the gateway at 20/s"
HTTP_RATE, HTTP_CONNECTIONS = 20.0, 500
P99, MEMORY = "p99 of an acknowledgement at 100/s", "memory beside a flood"
RATE, PARTITIONS, SECONDS, SETTLE_S = 100.0, 4, 6.0, 1.0


class Attacked:
    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._seconds = results, rounds, max(3.0, SECONDS * scale)

    def run(self) -> None:
        """Each flood has its own root, so that none leaves anything to the next one."""
        for _ in range(self._rounds):
            for kind in ("", *ALL):
                self._beside(kind)

    def _beside(self, kind: str) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledgermq-bench-")))
            (folder / "root").mkdir()
            calm_token, hostile_token = _tokens((folder / "root").as_uri())
            options = ("--security=rules", "--kafka-port=0", *ADMIN)
            cluster = Cluster(folder, (folder / "root").as_uri(), 1, *options, token=calm_token)
            stack.callback(cluster.close)
            calm = cluster.start_client("live", cluster.new_topic(PARTITIONS), rate=RATE)
            wait_until_warm(calm)
            time.sleep(SETTLE_S)
            name = ALL.get(kind, ALONE)
            before, most = cluster.rss_bytes(), _Most(cluster)
            by_http = None
            if kind == "" or kind in HTTP_FLOODS:
                topic = cluster.new_topic(PARTITIONS)
                by_http = stack.enter_context(_ByGateway(folder, cluster.brokers.addresses, topic, calm_token))
            flood = self._flood(cluster, kind, hostile_token, by_http) if kind else None
            if flood is not None:
                wait_until_warm(flood)
            begin_s = time.time()
            most.follow(self._seconds + SETTLE_S)
            end_s = time.time()
            found = latencies_within(stop_client(calm)["latencies"], begin_s, end_s)
            self._results.add(ROW, P99, name, "ms", at(found, 0.99))
            self._results.add(ROW, MEMORY, name, "MB", max(0, most.bytes - before) / 1e6)
            if by_http is not None:
                self._results.add(ROW, P99_HTTP, name, "ms", by_http.p99_ms(begin_s, end_s))
            if flood is not None:
                flood.wait(timeout=120)

    def _flood(self, cluster: Cluster, kind: str, token: str, by_http: _ByGateway | None) -> subprocess.Popen[str]:
        broker = cluster.brokers.running[0]
        if kind in HTTP_FLOODS:
            assert by_http is not None
            given = [str(by_http.port), str(HTTP_CONNECTIONS), str(self._seconds), *([token] * (kind == "http"))]
            command = ["tests.attacks.http_flood", *given]
        elif kind in KINDS_OF_KAFKA:
            given = [KINDS_OF_KAFKA[kind], _kafka_address(broker), str(self._seconds), token]
            command = ["tests.attacks.kafka_flood", *given]
        else:
            options = [f"--token={token}", f"--admin={AdminPort(broker).address}", f"--seconds={self._seconds}"]
            command = ["bench.attacker", kind, broker.address, *options]
        command = [sys.executable, "-m", *command]
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


class _ByGateway:
    """A gateway, and a program that sends a record by it at a steady rate."""

    def __init__(self, folder: Path, target: str, topic: str, token: str) -> None:
        self.port = 0
        self._log, self._target, self._topic, self._token = folder / "gateway.log", target, topic, token
        self._took: list[tuple[float, float]] = []
        """When each was to be sent, and how long it took from then on."""
        self._over = threading.Event()
        self._sending = threading.Thread(target=self._send, name="records by the gateway")

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "ledgermq.cli.main", "gateway", "--target", self._target, "--port", "0"]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        wait_until(lambda: "gateway listens" in self._log.read_text() or self._process.poll() is not None)
        found = re.search(r"http://127.0.0.1:(\d+)", self._log.read_text())
        if found is None:
            raise RuntimeError(f"the gateway did not start: {self._log.read_text()}")
        self.port = int(found[1])
        self._sending.start()
        wait_until(lambda: len(self._took) >= HTTP_RATE)  # the first records make a producer
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sending.join()
        self._process.kill()
        self._process.wait()

    def _send(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=120) as http:
            due_s = time.time()
            while not self._over.is_set():
                answer = http.post(f"/v1/topics/{self._topic}/records", json={"records": [{"value": "x"}]})
                answer.raise_for_status()
                self._took.append((due_s, time.time() - due_s))
                due_s += 1 / HTTP_RATE
                time.sleep(max(0.0, due_s - time.time()))

    def p99_ms(self, begin_s: float, end_s: float) -> float:
        self._over.set()
        self._sending.join()
        return at(latencies_within([(due_s, 1000 * took_s) for due_s, took_s in self._took], begin_s, end_s), 0.99)


def _kafka_address(broker: BrokerProcess) -> str:
    wait_until(lambda: "Kafka port open" in broker.text())
    found = re.search(r'"advertised": ?"[^"]*:(\d+)"', broker.text())
    assert found is not None
    return f"127.0.0.1:{found[1]}"


def _tokens(root: str) -> tuple[str, str]:
    """Return a token that may use all topics, and one that may use its own only."""
    with ledgermq.sync.connect(root) as client:
        client.access.grant("user:calm", "produce,consume,create,describe", "*")
        client.create_topic(OWN_OF_KAFKA, 1)
        client.access.grant("user:hostile", "produce,consume,create,describe,alter,delete", f"{OWN}*")
        return client.access.create_token("calm").token, client.access.create_token("hostile").token

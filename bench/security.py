"""X1: records a second with TLS, with tokens and access rules, and with neither, through one broker on
local files with fsync.

Brokers, each on a root of its own, take turns. With TLS: the key is elliptic (P-256), the cipher
AES-GCM (TLS 1.3). With rules: one token, and a hundred rules of other principals, besides the one
that lets the client pass. The processor time is that of the broker and of the client together, from
the client's start to its end.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import ledgermq.sync
from bench.measures import Results, alternate
from bench.ours import Cluster
from tests.certificates import Authority

ROW = "X1"
WITH_TLS, WITH_RULES, WITHOUT = "with TLS", "with tokens and rules", "with neither"
RECORDS, VALUE_BYTES, PARTITIONS = 300_000, 1000, 8
OTHER_RULES = 100
PRODUCE, CONSUME = (f"{what} {VALUE_BYTES} B" for what in ("produce", "consume"))


class Secured:
    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._records = results, rounds, int(RECORDS * scale)

    def run(self) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledgermq-bench-")))
            roots = {name: folder / name.replace(" ", "-") for name in (WITHOUT, WITH_TLS, WITH_RULES)}
            for root in roots.values():
                root.mkdir()
            authority = Authority(folder)
            pair = authority.issue("broker")
            files = (f"--tls-cert-file={pair.cert}", f"--tls-key-file={pair.key}")
            token = _token_and_rules(roots[WITH_RULES].as_uri())
            clusters: dict[str, Cluster] = {}
            for name, options, ca, proof in (
                (WITHOUT, (), None, ""),
                (WITH_TLS, files, authority.ca, ""),
                (WITH_RULES, ("--security=rules",), None, token),
            ):
                clusters[name] = Cluster(folder, roots[name].as_uri(), 1, *options, tls_ca=ca, token=proof)
                stack.callback(clusters[name].close)
            self._measure(clusters)

    def _measure(self, clusters: dict[str, Cluster]) -> None:
        topics: dict[str, str] = {}

        def produce(name: str) -> Callable[[], float]:
            def once() -> float:
                topics[name] = clusters[name].new_topic(PARTITIONS)
                given = {"records": self._records, "value_bytes": VALUE_BYTES, "via": "send_batch"}
                return self._rate(clusters[name], name, "produce", topics[name], given)

            return once

        def consume(name: str) -> Callable[[], float]:
            def once() -> float:
                given = {"records": self._records, "via": "arrow"}
                return self._rate(clusters[name], name, "consume", topics[name], given)

            return once

        for what, of in ((PRODUCE, produce), (CONSUME, consume)):
            alternate(self._results, ROW, what, "records/s", {name: of(name) for name in clusters}, self._rounds)

    def _rate(self, cluster: Cluster, name: str, what: str, topic: str, given: dict[str, object]) -> float:
        """Return records a second of one client, and add the processor time."""
        before_s = cluster.cpu_s() + _children_s()
        found = cluster.client(what, topic, **given)
        used_s = cluster.cpu_s() + _children_s() - before_s
        megabytes = found["records"] * VALUE_BYTES / 1e6
        self._results.add(ROW, f"CPU, {what} {VALUE_BYTES} B", name, "ms/MB", 1000 * used_s / megabytes)
        return float(found["records"] / found["seconds"])


def _token_and_rules(root: str) -> str:
    """Return a token that may create, fill and read all topics of a root."""
    with ledgermq.sync.connect(root) as client:
        client.access.grant("user:bench", "produce,consume,create,describe", "*")
        for number in range(OTHER_RULES):
            client.access.grant(f"user:other-{number}", "produce,consume", f"topic-{number}-*")
        return client.access.create_token("bench").token


def _children_s() -> float:
    """Return the processor time of the clients that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

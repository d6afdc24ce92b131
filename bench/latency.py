"""P4: acknowledgement latency at 100 records a second, beside one raw PUT of the same store (if absent, as brokers put) in the same run."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.measures import Measure, Results
from bench.ours import Cluster
from infra import minio
from ledger.object_store.open import open_store
from ledgermq.sources import Sources
from tests.stores import create_bucket

RATE = 100.0
PUT_BYTES = 1000


class Latency:
    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._records = results, rounds, int(1000 * scale)

    def run(self) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledgermq-bench-")))
            (folder / "root").mkdir()
            self._store("file, fsync", folder, (folder / "root").as_uri())
            if minio.installed() is not None:
                server = stack.enter_context(minio.running())
                create_bucket(server, "bench")
                os.environ.update(AWS_ACCESS_KEY_ID=server.access_key, AWS_SECRET_ACCESS_KEY=server.secret_key)
                self._store("MinIO", folder, f"s3://bench/root?endpoint={server.endpoint}&region=us-east-1")

    def _store(self, name: str, folder: Path, root: str) -> None:
        cluster = Cluster(folder, root)
        found: dict[str, list[list[float]]] = {"raw PUT": [], "LedgerMQ": []}
        try:
            topic = cluster.new_topic(8)
            for _ in range(self._rounds):
                found["raw PUT"].append(asyncio.run(raw_puts(root, self._records // 5)))
                options = {"rate": RATE, "records": self._records, "value_bytes": 100}
                found["LedgerMQ"].append(cluster.client("produce", topic, **options)["latencies_ms"])
        finally:
            cluster.close()
        for part, which in ((0.5, "p50"), (0.99, "p99")):
            for subject, rounds in found.items():
                points = [at(latencies, part) for latencies in rounds]
                self._results.measures.append(Measure("P4", f"acknowledgement at 100/s, {name}, {which}", subject, "ms", points))


def at(sorted_values: list[float], part: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * part))]


async def raw_puts(root: str, count: int) -> list[float]:
    """Latencies in ms, sorted, of puts at the same pace, each of an object that is not there."""
    latencies_ms: list[float] = []
    sources = Sources()
    async with await open_store(root, sources=sources) as store:
        for _ in range(count):
            begun_s = time.perf_counter()
            await store.put_if_absent(f"bench/{sources.new_id().hex()}", [b"x" * PUT_BYTES])
            latencies_ms.append(1000 * (time.perf_counter() - begun_s))
            await asyncio.sleep(max(0.0, 1 / RATE - (time.perf_counter() - begun_s)))
    return sorted(latencies_ms)

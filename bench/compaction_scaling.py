"""How Parquet compaction grows with the executors of a real Spark cluster: one worker of one core,
then two.

    python -m bench.compaction_scaling [--megabytes 2000] [--value-bytes 1000] [--partitions 16]
                                       [--workers 1 2] [--rounds 1]

A root with one bundle for each round, equally full, in a local folder; a standalone cluster of
processes on this machine; a driver that compacts one small bundle first, for executors and Python
to start, and then the one that counts. Wall time is of the round, plan and commit included;
processor seconds are of all processes of the workers. On a machine with fewer idle cores than
workers the rates say little: look at the processor seconds then. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from crc32c import crc32c

from bench.compaction import TARGET_BYTES, Shape, batches
from infra import java
from ledgermq.protocol.batches.records import encode_batch
from ledgermq.sources import Sources
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.parquet.report import CompactionReport
from ledgermq_ledger.root.open import open_store
from ledgermq_ledger.rounds.runner import compact_root
from tests.servers.spark_cluster import SparkCluster, spark_cluster
from tests.worlds.ledgers import append_and_wait
from tests.worlds.roots import Root

QUICK_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""The work is done in Python; in a JVM that lives for a minute, full optimisation does not pay off.
"""
WARM_UP_BYTES = 8_000_000
SEGMENT_BYTES = 4_000_000
RUN_S_MAX = 600


async def fill(folder: Path, shape: Shape, bundles: int) -> None:
    """Fill bundle 1 and so on, each with its own topic; every second one is small, for warming up."""
    sources = Sources()
    async with FileStore(folder, sources) as store:
        root = await Root.open(store, sources, bundles + 1)
        for bundle in range(1, bundles + 1):
            total_bytes = WARM_UP_BYTES if bundle % 2 else shape.total_bytes
            await fill_bundle(
                root, bundle, Shape(shape.value_bytes, total_bytes, shape.segment_bytes, shape.partitions)
            )


async def fill_bundle(root: Root, bundle: int, shape: Shape) -> None:
    topic = await root.create_topic(f"t{bundle}", shape.partitions, bundle, parquet_target_bytes=str(TARGET_BYTES))
    writer = await root.writer(bundle)
    for segment in batches(shape):
        encoded = [(batch.num_rows, encode_batch(batch)) for batch in segment]
        await append_and_wait(
            writer, *(Batch(topic.id, p, count, crc32c(data), 0, 0, data) for p, (count, data) in enumerate(encoded))
        )


def cpu_s(sessions: list[int]) -> float:
    """Return the CPU seconds of all live processes in these sessions, and of their children that
    have ended.
    """
    ticks = 0
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if int(fields[3]) in sessions:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def compact(url: str, bundle: int, sessions: list[int]) -> dict[str, float]:
    """Compact in the driver."""
    from ledgermq_spark.engine import SparkEngine
    from ledgermq_spark.session import open_session

    spark = open_session()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        async with await open_store(url, sources=Sources()) as store:

            async def run(bundle: int) -> CompactionReport:
                report = await compact_root(store, Sources(), SparkEngine(spark), bundles=[bundle])
                assert not report.failures, report.failures
                return report

            await run(bundle - 1)
            begun_cpu_s, begun_s = cpu_s(sessions), time.perf_counter()
            report = await run(bundle)
            wall_s = time.perf_counter() - begun_s
            megabytes = report.source_bytes / 1e6
            return {"mb": megabytes, "wall_s": wall_s, "cpu_s": cpu_s(sessions) - begun_cpu_s}
    finally:
        spark.stop()


def drive(cluster: SparkCluster, url: str, bundle: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.compaction_scaling", "--drive", url, "--bundle", str(bundle), "--sessions"]
    command += [str(worker.pid) for worker in cluster.workers]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=cluster.environment, timeout=RUN_S_MAX, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(shape: Shape, rounds: int, counts: list[int]) -> dict[str, object]:
    found: dict[int, list[dict[str, float]]] = {workers: [] for workers in counts}
    with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
        folder = Path(name)
        asyncio.run(fill(folder / "root", shape, 2 * rounds * len(counts)))
        turns = [workers for _ in range(rounds) for workers in counts]
        for turn, workers in enumerate(turns):
            place = folder / f"spark-{turn}"
            place.mkdir()
            with spark_cluster(place, workers) as cluster:
                found[workers].append(drive(cluster, (folder / "root").as_uri(), 2 * turn + 2))
    rates = {workers: [each["mb"] / each["wall_s"] for each in runs] for workers, runs in found.items()}
    return {
        "value_bytes": shape.value_bytes,
        "partitions": shape.partitions,
        "mb": round(found[counts[0]][0]["mb"]),
        "mb_per_s": {workers: [round(rate, 1) for rate in each] for workers, each in rates.items()},
        "cpu_s": {workers: [round(each["cpu_s"], 2) for each in runs] for workers, runs in found.items()},
        "mb_per_cpu_s": {
            workers: [round(each["mb"] / each["cpu_s"], 1) for each in runs] for workers, runs in found.items()
        },
        "last_by_first": round(
            statistics.median(b / a for a, b in zip(rates[counts[0]], rates[counts[-1]], strict=True)), 2
        ),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--drive", metavar="ROOT", help=argparse.SUPPRESS)
    parser.add_argument("--bundle", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sessions", type=int, nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.drive:
        print(json.dumps(asyncio.run(compact(chosen.drive, chosen.bundle, chosen.sessions))))
        return
    home = java.installed()
    assert home is not None, "Java 17 or newer is needed: infra/java.py installs it"
    os.environ |= {"JAVA_HOME": str(home), **QUICK_JAVA}
    shape = Shape(chosen.value_bytes, chosen.megabytes * 10**6, SEGMENT_BYTES, chosen.partitions)
    print(json.dumps(measure(shape, chosen.rounds, chosen.workers)))


if __name__ == "__main__":
    main()

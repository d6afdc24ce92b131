"""How soon a running Spark stream shows a record: from its acknowledgement to the moment at which
foreachBatch has it.

    python -m bench.freshness ROOT [--seconds 60] [--rate 200] [--broker-options "…"]

ROOT is a new root: file:///…, s3://…, hdfs://… One broker process, one producer process at a steady
rate, and in this process a query that runs batch after batch on local[2]. The first forty seconds
do not count: the first batch takes Spark up to twenty on two cores, and the next ones catch up.
Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import ledgermq
from bench import topics
from bench.percentiles import at
from bench.spark_session import local_session
from tests.e2e.processes import BrokerProcesses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "freshness"
WARM_UP_S = 40.0
PARTITIONS = 4


async def produce(servers: str, seconds: float, rate: int) -> None:
    """Print when each record was acknowledged: {"partition/offset": seconds since 1970}."""
    acknowledged: dict[str, float] = {}
    async with ledgermq.connect(servers) as client, client.producer() as producer, asyncio.TaskGroup() as group:

        async def one(number: int) -> None:
            stored = await producer.send(TOPIC, b"x" * 100, partition=number % PARTITIONS)
            acknowledged[f"{stored.partition}/{stored.offset}"] = time.time()

        begun_s = time.monotonic()
        for number in range(int(seconds * rate)):
            await asyncio.sleep(begun_s + number / rate - time.monotonic())
            group.create_task(one(number))
    print(json.dumps(acknowledged))


def measure(root: str, seconds: float, rate: int, broker_options: list[str]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, BrokerProcesses(Path(folder), root, broker_options) as brokers:
        servers = brokers.start().address
        topics.create(servers, TOPIC, PARTITIONS)
        with local_session() as spark:
            return stream(spark, root, folder, servers, seconds, rate)


def stream(spark: SparkSession, root: str, folder: str, servers: str, seconds: float, rate: int) -> dict[str, object]:
    seen: dict[str, float] = {}

    def note(frame: DataFrame, _: int) -> None:
        rows = frame.select("partition", "offset").collect()
        now = time.time()
        seen.update((f"{row.partition}/{row.offset}", now) for row in rows)

    frame = spark.readStream.format("ledgermq").option("root", root).option("topic", TOPIC).load()
    query = frame.writeStream.foreachBatch(note).option("checkpointLocation", folder + "/checkpoint").start()
    command = [
        sys.executable,
        "-m",
        "bench.freshness",
        "--produce",
        servers,
        "--seconds",
        str(seconds + WARM_UP_S),
        "--rate",
        str(rate),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    acknowledged: dict[str, float] = json.loads(done.stdout)
    until = time.monotonic() + 60
    while not acknowledged.keys() <= seen.keys() and time.monotonic() < until:
        time.sleep(0.1)
    durations = [progress.durationMs for progress in query.recentProgress if progress.numInputRows]
    query.stop()
    begun = min(acknowledged.values()) + WARM_UP_S
    waits = sorted(seen[name] - at_s for name, at_s in acknowledged.items() if at_s >= begun)
    steps = {name: round(sum(each.get(name, 0) for each in durations) / len(durations)) for name in durations[-1]}
    return {
        "root": root.split("?", maxsplit=1)[0],
        "records": len(waits),
        "rate": rate,
        "p50_s": round(at(waits, 0.5), 3),
        "p99_s": round(at(waits, 0.99), 3),
        "max_s": round(waits[-1], 3),
        "batches": len(durations),
        "mean_ms_of_a_batch": steps,
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?")
    parser.add_argument("--produce", metavar="SERVERS", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=200, help="records a second")
    parser.add_argument("--broker-options", default="", help="of `ledgermq broker`")
    options = parser.parse_args()
    if options.produce:
        asyncio.run(produce(options.produce, options.seconds, options.rate))
    else:
        print(json.dumps(measure(options.root, options.seconds, options.rate, shlex.split(options.broker_options))))


if __name__ == "__main__":
    main()

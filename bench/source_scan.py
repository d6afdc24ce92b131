"""How fast Spark reads a topic through the data source, beside its own Parquet reader on the same
files.

    python -m bench.source_scan FOLDER [--records 1000000] [--value-bytes 1024] [--rounds 5] [--tail]

FOLDER takes a new root, or one that an earlier run filled, which is used again. Everything is
compacted before it is read; with `--tail` nothing is, and there is no other reader to compare with.
All count rows and add up the lengths of values and the offsets, in turns, on local[2]; the source
also with a schema, which tells it that these two columns are all. The limit is a source in Python that
only reads the files (`bench.bare_source`). Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import ledgermq
from bench import topics
from bench.load import DISTINCT_VALUES, values
from bench.spark_session import local_session
from ledgermq.sources import Sources
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.root.open import open_store
from ledgermq_ledger.rounds.runner import compact_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "scanned"
PARTITIONS = 4


async def fill(root: str, records: int, value_bytes: int) -> None:
    rows = pa.record_batch({"value": pa.array(values(DISTINCT_VALUES, value_bytes, random_bytes=False), pa.binary())})
    async with ledgermq.connect(root) as client, client.producer() as producer:
        for number in range(records // DISTINCT_VALUES):
            await producer.send_batch(TOPIC, rows, partition=number % PARTITIONS)
        await producer.flush()


async def compact(root: str) -> None:
    async with await open_store(root, sources=Sources()) as store:
        assert not (await compact_root(store, Sources(), LocalEngine(Sources()))).failures


def scan(spark: SparkSession, root: str, rounds: int, *, tail: bool) -> dict[str, object]:
    from bench.bare_source import BareSource

    options = {"root": root, "topic": TOPIC, "minPartitions": "4"}
    subjects: dict[str, Callable[[], DataFrame]] = {
        "source": lambda: spark.read.format("ledgermq").options(**options).load(),
        "source_with_schema": lambda: (
            spark.read.format("ledgermq").schema("value BINARY, offset LONG").options(**options).load()
        ),
    }
    if not tail:
        files = f"{root}/parquet/topic={TOPIC}"
        spark.dataSource.register(BareSource)
        subjects["native"] = lambda: spark.read.parquet(files)
        subjects["bare"] = lambda: spark.read.format("bare").load(files.removeprefix("file://"))
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    found = set()
    for number in range(rounds + 1):
        for name, frame in subjects.items():
            begun_s = time.perf_counter()
            row = frame().selectExpr("count(*)", "sum(length(value))", "sum(offset)").collect()[0]
            found.add(tuple(row))
            if number:  # the first warms up
                seconds[name].append(time.perf_counter() - begun_s)
    assert len(found) == 1, found
    [(count, value_bytes, _)] = found
    rates = {name: [round(value_bytes / each / 1e6) for each in took] for name, took in seconds.items()}
    result: dict[str, object] = {
        "records": count,
        "value_mb": round(value_bytes / 1e6),
        "mb_per_s": rates,
        "load_average": os.getloadavg()[0],
    }
    if not tail:
        for name in ("source", "source_with_schema"):
            ratios = [native / ours for ours, native in zip(seconds[name], seconds["native"], strict=True)]
            result[f"{name}_by_native"] = round(statistics.median(ratios), 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tail", action="store_true", help="read segments")
    options = parser.parse_args()
    root = options.folder.absolute().as_uri()
    if not (options.folder / "cluster.json").exists():
        topics.create(root, TOPIC, PARTITIONS)
        asyncio.run(fill(root, options.records, options.value_bytes))
        if not options.tail:
            asyncio.run(compact(root))
    with local_session() as spark:
        print(json.dumps(scan(spark, root, options.rounds, tail=options.tail)))


if __name__ == "__main__":
    main()

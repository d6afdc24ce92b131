"""What the Spark sink costs beside the SDK: `python -m bench.sink [--mb 256] [--value-bytes 1000]
[--partitions 8]`.

One broker process on a local folder; the sink's own code in this process, fed with Arrow batches as
Spark hands them to a task: no JVM. The rates of a core are of this process's CPU time alone
(megabytes of keys and values); wall times mean something on a quiet machine only.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructType

import ledgermq
from bench import topics
from ledgermq_spark.sink.writers import StagingWriter, batch_writer
from tests.e2e.processes import BrokerProcesses

ROWS_PER_BATCH = 10_000
"""As Spark hands rows to Python (spark.sql.execution.arrow.maxRecordsPerBatch)."""

SCHEMA = StructType().add("key", BinaryType()).add("value", BinaryType())


def batches(mb: int, value_bytes: int) -> list[pa.RecordBatch]:
    """Half of each value is random, the rest repeats."""
    source = random.Random(1)
    rows = max(1, mb * 1_000_000 // (value_bytes + 10))
    made = []
    for first in range(0, rows, ROWS_PER_BATCH):
        count = min(ROWS_PER_BATCH, rows - first)
        keys = pa.array([b"%010d" % (first + i) for i in range(count)], pa.binary())
        values = pa.array(
            [source.randbytes(value_bytes // 2).ljust(value_bytes, b".") for _ in range(count)], pa.binary()
        )
        made.append(pa.record_batch({"key": keys, "value": values}))
    return made


class Table:
    def __init__(self, rows: int, mb: float) -> None:
        self._rows = rows
        self._mb = mb

    def measure(self, what: str, work: Callable[[], None]) -> None:
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        work()
        wall_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
        print(
            f"{what:46} {self._rows / wall_s / 1e3:8.0f} k rows/s {self._mb / wall_s:7.0f} MB/s wall; "
            f"a core: {self._rows / cpu_s / 1e3:7.0f} k rows/s {self._mb / cpu_s:6.0f} MB/s",
            flush=True,
        )


async def send(servers: str, rows: Iterator[pa.RecordBatch], compression: str) -> None:
    async with ledgermq.connect(servers) as client, client.producer(compression=compression) as producer:
        for batch in rows:
            await producer.send_batch("t", batch)
        await producer.flush()


def run(servers: str, mb: int, value_bytes: int, compression: str) -> None:
    made = batches(mb, value_bytes)
    rows = sum(batch.num_rows for batch in made)
    table = Table(rows, rows * (value_bytes + 10) / 1e6)
    without_keys = [batch.select(["value"]) for batch in made]
    options = {"servers": servers, "topic": "t", "compression": compression}
    print(f"{rows} rows of {value_bytes + 10} B, compression {compression}")
    table.measure("SDK send_batch, no keys", lambda: asyncio.run(send(servers, iter(without_keys), compression)))
    table.measure("SDK send_batch, by key", lambda: asyncio.run(send(servers, iter(made), compression)))
    direct = batch_writer(options | {"delivery": "atLeastOnce"}, SCHEMA, False)
    table.measure("task, at least once", lambda: _write(direct, made))
    staging = batch_writer(options, SCHEMA, False)
    assert isinstance(staging, StagingWriter)
    messages = []
    table.measure("task, exactly once (stage)", lambda: messages.append(staging.write(iter(made))))
    table.measure("driver, exactly once (decide and publish)", lambda: staging.commit(messages))


def _write(writer: object, made: list[pa.RecordBatch]) -> None:
    writer.write(iter(made))  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--value-bytes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--compression", nargs="+", default=["none", "lz4"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, BrokerProcesses(Path(folder), f"file://{folder}/root") as brokers:
        brokers.start()
        topics.create(brokers.addresses, "t", given.partitions)
        for value_bytes in given.value_bytes:
            for compression in given.compression:
                run(brokers.addresses, given.mb, value_bytes, compression)


if __name__ == "__main__":
    main()

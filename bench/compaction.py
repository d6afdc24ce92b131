"""Parquet compaction against a plain pyarrow write of the same rows, per core; and what its
requests cost on S3.

python -m bench.compaction [--megabytes 500] [--segment-megabytes 4] [--partitions 8] [--rounds 4]

Both take turns, each time to new files, in alternating order: the first one gets the memory that
was freed a moment ago. The first turn of each does not count: it takes fresh memory from the
kernel, and imports what it needs. The result is the median of the others; the ratio is the median
of the ratios of a turn. Processor seconds are of this process, all threads: on a shared machine
they say more than wall time. Tasks run as in a worker of Spark. The plain conversion reads the same
segments with pyarrow alone, one thread, and writes files of the same columns, codec, encodings,
statistics and page index; it knows no checksums, validates nothing, finds nothing by index, and
makes nothing durable.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from ledgermq.protocol.batches.records import SCHEMA as RECORD_SCHEMA
from ledgermq.protocol.batches.records import encode_batch
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import RunBlocking, run_inline
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.object_store.prices import DELETES, NOT_SENT, S3_PRICES, WRITES
from ledgermq_ledger.object_store.wrappers.metered import MeteredStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.files.columns import SCHEMA_BEFORE as SCHEMA
from ledgermq_ledger.parquet.files.columns import open_writer
from ledgermq_ledger.parquet.report import CompactionReport
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.topics.settings import TopicSettings
from tests.stores.counting import CountingMeter
from tests.worlds.ledgers import append_and_wait
from tests.worlds.roots import Root

TARGET_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class Shape:
    value_bytes: int
    total_bytes: int
    segment_bytes: int
    partitions: int


def rows(count: int, value_bytes: int, seed: int) -> pa.RecordBatch:
    """Make rows: keys of eight digits, values of hexadecimal noise, which compress to a half, as
    text does.
    """
    r = np.random.default_rng(seed)
    letters = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    data = letters[r.integers(0, 16, count * value_bytes, dtype=np.uint8)]
    ends = np.arange(0, (count + 1) * value_bytes, value_bytes, dtype=np.int32)
    value = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    key = pa.array(np.char.zfill(r.integers(0, 10**6, count).astype("S8"), 8), pa.binary())
    stamp = pa.array(np.arange(count) + seed * 10**6, pa.timestamp("us", tz="UTC"))
    nulls = {name: pa.nulls(count, RECORD_SCHEMA.field(name).type) for name in ("headers", "tag")}
    columns = {
        "key": key,
        "value": value,
        "timestamp": stamp,
        "timestampType": pa.array([0] * count, pa.int32()),
        **nulls,
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in RECORD_SCHEMA.names], schema=RECORD_SCHEMA)


def batches(shape: Shape) -> Iterator[list[pa.RecordBatch]]:
    """Make batches: one list per segment, with a batch for each partition."""
    count = max(1, shape.segment_bytes // shape.partitions // (shape.value_bytes + 8))
    for segment in range(max(1, shape.total_bytes // shape.segment_bytes)):
        yield [rows(count, shape.value_bytes, segment * shape.partitions + p) for p in range(shape.partitions)]


async def fill(root: Root, shape: Shape) -> int:
    """Write the batches; return the bytes of batches in segments."""
    topic = await root.create_topic("t", shape.partitions, parquet_target_bytes=str(TARGET_BYTES))
    writer = await root.writer(1)
    total = 0
    for segment in batches(shape):
        encoded = [(batch, encode_batch(batch)) for batch in segment]
        total += sum(len(data) for _, data in encoded)
        entries = [
            Batch(topic.id, p, batch.num_rows, crc32c(data), 0, 0, data) for p, (batch, data) in enumerate(encoded)
        ]
        await append_and_wait(writer, *entries)
    return total


def plain_conversion(shape: Shape, root: Path, folder: Path) -> tuple[float, float, int]:
    """Convert every segment's stream, partition by partition, to one file each; return (processor
    seconds in total, of the writing alone, rows).
    """
    writers: dict[int, pq.ParquetWriter] = {}
    waiting: dict[int, list[pa.RecordBatch]] = {p: [] for p in range(shape.partitions)}
    waiting_bytes, ends = dict.fromkeys(waiting, 0), dict.fromkeys(waiting, 0)
    writing_s = 0.0
    begun_s = time.process_time()

    def flush(partition: int) -> None:
        nonlocal writing_s
        table = pa.Table.from_batches(waiting[partition], SCHEMA)
        waiting[partition], waiting_bytes[partition] = [], 0
        flush_s = time.process_time()
        if partition not in writers:
            writers[partition] = open_writer(
                pa.OSFile(str(folder / f"{partition}.parquet"), "wb"), {}, has_appended=False
            )
        writers[partition].write_table(table, row_group_size=table.num_rows)
        writing_s += time.process_time() - flush_s

    for path in sorted((root / "ledgers" / "0001" / "segments").iterdir()):
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            for partition, batch in enumerate(stream):
                waiting[partition].append(placed(batch, partition, ends[partition]))
                ends[partition] += batch.num_rows
                waiting_bytes[partition] += batch.nbytes
                if waiting_bytes[partition] >= TopicSettings().parquet_row_group_bytes:
                    flush(partition)
    for partition, left in waiting.items():
        if left:
            flush(partition)
    close_s = time.process_time()
    for writer in writers.values():
        writer.close()
    return time.process_time() - begun_s, writing_s + time.process_time() - close_s, sum(ends.values())


def placed(batch: pa.RecordBatch, partition: int, first: int) -> pa.RecordBatch:
    count = batch.num_rows
    columns = {name: batch.column(name) for name in RECORD_SCHEMA.names}
    columns["topic"] = pa.repeat(pa.scalar("t", pa.string()), count)
    columns["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), count)
    columns["offset"] = pa.array(np.arange(first, first + count))
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


async def measure(shape: Shape, folder: Path, rounds: int) -> dict[str, object]:
    async with FileStore(folder / "root", Sources()) as files:
        stored = await fill(await Root.open(files, Sources()), shape)
    plain, writing, ours, walls = [], [], [], []
    for turn in range(rounds + 1):
        shutil.copytree(folder / "root", folder / "copy")
        (folder / "plain").mkdir()
        os.sync()  # what the kernel writes back later would burden another turn
        if turn % 2:
            plain_cpu, writing_cpu, count = plain_conversion(shape, folder / "root", folder / "plain")
        async with FileStore(folder / "copy", Sources()) as copy:
            cpu, wall, report, requests = await compact(copy, run_inline)
        if not turn % 2:
            plain_cpu, writing_cpu, count = plain_conversion(shape, folder / "root", folder / "plain")
        assert (report.source_bytes, report.records) == (stored, count)
        shutil.rmtree(folder / "copy")
        shutil.rmtree(folder / "plain")
        if turn > 0:
            for values, value in ((plain, plain_cpu), (writing, writing_cpu), (ours, cpu), (walls, wall)):
                values.append(value)
    writes = sum(number for name, number in requests.items() if name in WRITES)
    reads = (
        sum(requests.values()) - writes - sum(number for name, number in requests.items() if name in DELETES | NOT_SENT)
    )
    cpu, plain_cpu = median(ours), median(plain)
    return {
        "value_bytes": shape.value_bytes,
        "segment_bytes": stored,
        "parquet_bytes": report.stored_bytes,
        "records": report.records,
        "files": report.files,
        "compaction_cpu_s": [round(value, 2) for value in ours],
        "compaction_wall_s": round(median(walls), 2),
        "compaction_mb_per_cpu_s": round(stored / 1e6 / cpu, 1),
        "plain_cpu_s": [round(value, 2) for value in plain],
        "plain_mb_per_cpu_s": round(stored / 1e6 / plain_cpu, 1),
        "plain_writing_alone_cpu_s": round(median(writing), 2),
        "rate_to_plain": round(median(theirs / mine for theirs, mine in zip(plain, ours, strict=True)), 3),
        "requests": {name: number for name, number in requests.items() if number},
        "requests_per_gb": {"write": round(writes / stored * 1e9, 1), "read": round(reads / stored * 1e9, 1)},
        "dollars_per_tb": round(
            sum(S3_PRICES.of(name) * number for name, number in requests.items()) / stored * 1e12, 3
        ),
    }


async def compact(
    store: ObjectStore, run_blocking: RunBlocking
) -> tuple[float, float, CompactionReport, dict[str, int]]:
    """Compact; return processor seconds, wall seconds, what was done, requests."""
    sources, meter = Sources(), CountingMeter()
    begun, begun_wall = time.process_time(), time.perf_counter()
    report = await compact_root(
        MeteredStore(store, meter), sources, LocalEngine(sources, run_blocking, tasks_at_once=1)
    )
    cpu, wall = time.process_time() - begun, time.perf_counter() - begun_wall
    assert not report.failures
    return cpu, wall, report, meter.by_operation()


def main() -> None:
    parser = argparse.ArgumentParser(description="Parquet compaction against a plain pyarrow write, per core.")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--segment-megabytes", type=float, default=4)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--values", type=int, nargs="+", default=[100, 1000])
    chosen = parser.parse_args()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for value_bytes in chosen.values:
        shape = Shape(value_bytes, chosen.megabytes * 10**6, int(chosen.segment_megabytes * 10**6), chosen.partitions)
        folder = Path(tempfile.mkdtemp(prefix="ledgermq-bench-"))
        try:
            print(json.dumps(asyncio.run(measure(shape, folder, chosen.rounds)), indent=2), flush=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()

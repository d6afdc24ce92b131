"""How much of a busy topic readers read: eight partitions, a day of JSON of 290 bytes, a file for each partition.

The clock of the root is the test's own: records come in the order of time over 24 hours, and `appended` says when. With
broken clocks one record in a thousand has a time between 1970 and 2027.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from bench.lake.reads import READERS, read
from bench.typed import json_kind, value_of
from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from tests.worlds.ledgers import append_and_wait
from tests.worlds.roots import Root
from tests.worlds.typed_values import framed, register

PARTITIONS = 8
BATCH_ROWS = 2_000
BEGUN_US = 1_790_000_000_000_000
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
KEYS = 32_768


class Clock:
    def __init__(self) -> None:
        self.now_us = BEGUN_US

    def __call__(self) -> int:
        return self.now_us


async def fill(folder: Path, records: int, *, broken: bool = False, typed: bool = False) -> None:
    schema, encode = json_kind()
    r, clock = random.Random(7), Clock()
    sources = Sources(clock)
    async with MemoryStore("busy", sources) as store:  # dates of files are the machine's
        root = await Root.open(store, sources)
        settings = {"value_schema_subject": "t-value"} if typed else {}
        topic = await root.create_topic("t", PARTITIONS, **settings)
        if typed:
            await register(root, schema, "json")
        writer, number = await root.writer(1), 0
        while number < records:
            batches = []
            for partition in range(PARTITIONS):
                rows = []
                for _ in range(min(BATCH_ROWS, records - number)):
                    clock.now_us = BEGUN_US + number * DAY_US // records
                    at = r.randrange(1_800_000_000_000_000) if broken and r.random() < 0.001 else clock.now_us
                    body = encode(value_of(r, number))
                    value = framed(1, body) if typed else body
                    key = b"key-%08d" % r.randrange(KEYS)
                    rows.append({"key": key, "value": value, "timestamp": at, "timestampType": 0})
                    number += 1
                if rows:
                    times = [row["timestamp"] for row in rows]
                    data = encode_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
                    batches.append(
                        Batch(topic.id, partition, len(rows), crc32c(data), min(times), max(times), data)  # type: ignore[arg-type]
                    )
            await append_and_wait(writer, *batches)
        clock.now_us = BEGUN_US + DAY_US
        report = await compact_root(store, sources, LocalEngine(sources, run_inline, tasks_at_once=1))
        assert not report.failures
        assert report.records == records
        async for info in store.list(keys.PARQUET):
            data = await store.get(info.key)
            await asyncio.to_thread(_save, folder / info.key, data)


def _save(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("parquet/topic=t/partition=*/*.parquet"))


def pruned(files: list[Path], column: str) -> list[dict[str, Any]]:
    """Return what each reader reads for the last hour of the day, by this column."""
    bounds = [BEGUN_US + DAY_US - HOUR_US, BEGUN_US + 2 * DAY_US]
    return [_row(f"last hour by {column}", reader, files, read(reader, files, column, bounds)) for reader in READERS]


def one_key(files: list[Path]) -> list[dict[str, Any]]:
    return [_row("one key", reader, files, read(reader, files, "key", ["key-00000007"])) for reader in READERS]


def _row(what: str, reader: str, files: list[Path], found: dict[str, Any]) -> dict[str, Any]:
    whole = sum(path.stat().st_size for path in files)
    share = round(100 * found["bytes"] / whole, 1)
    return {"row": what, "reader": reader, "files": len(files), "mb": round(whole / 1e6, 1), "percent": share} | found

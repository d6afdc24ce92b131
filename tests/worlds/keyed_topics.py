"""Keyed topics for tests: what is written, what a plain reader sees of it, and the dict that both
have to agree with.

The plain reader knows nothing of ours: it lists `keyed/`, reads JSON, and opens with pyarrow
exactly the files that it names.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.topics.topic import Topic
from tests.worlds.ledgers import append_and_wait
from tests.worlds.roots import Root

Pair = tuple[bytes | None, bytes | None]


@dataclass(frozen=True)
class Row:
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass
class Written:
    """Everything that was produced to one partition, in order of offset."""

    rows: list[Row] = field(default_factory=list)

    def latest(self, end: int, start: int = 0) -> dict[bytes, Row]:
        """By key, of the records from `start` up to, without, `end`; tombstones included."""
        return {row.key: row for row in self.rows[start:end] if row.key is not None}

    def table(self, end: int) -> dict[bytes, bytes]:
        """The state of a reader that has read everything below `end`."""
        return {key: row.value for key, row in self.latest(end).items() if row.value is not None}


async def put_pairs(
    root: Root, topic: Topic, written: Written, pairs: Sequence[Pair], partition: int = 0, timestamp_ms: int = 0
) -> None:
    """One batch of records: (key, value)."""
    when = dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC)
    rows = [{"key": key, "value": value, "timestamp": when, "timestampType": 0} for key, value in pairs]
    data = encode_batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    us = timestamp_ms * 1000
    writer = await root.writer(topic.bundles[partition])
    [base] = await append_and_wait(writer, Batch(topic.id, partition, len(rows), crc32c(data), us, us, data))
    assert base == len(written.rows)
    written.rows += [Row(base + i, key, value) for i, (key, value) in enumerate(pairs)]


async def read_plain_version(store: ObjectStore, topic: Topic, partition: int = 0) -> tuple[int, list[Row]] | None:
    """(end, rows in order of offset) of the version that counts; None: there is none yet. Raises
    ObjectMissing: look again.
    """
    folder = f"keyed/_{topic.id}/partition={partition}/versions/"
    listed = [info.key async for info in store.list(folder)]
    if not listed:
        return None
    version = json.loads(await store.get(listed[-1]))
    rows: list[Row] = []
    for file in version["files"]:
        rows += rows_of(await store.get(file["key"]))
    return version["end"], rows


async def read_plain_log(store: ObjectStore, topic: Topic, partition: int = 0) -> list[Row]:
    rows: list[Row] = []
    async for info in store.list(f"parquet/topic={topic.name}/partition={partition}/"):
        rows += rows_of(await store.get(info.key))
    return rows


def rows_of(data: bytes) -> list[Row]:
    found = pq.ParquetFile(io.BytesIO(data)).read(columns=["offset", "key", "value"]).to_pylist()
    return [Row(**row) for row in found]


def fold(rows: Iterable[Row]) -> dict[bytes, bytes]:
    """Key to value; a tombstone removes."""
    table: dict[bytes, bytes] = {}
    for row in rows:
        if row.key is not None and row.value is not None:
            table[row.key] = row.value
        elif row.key is not None:
            table.pop(row.key, None)
    return table


def judge_version(written: Written, end: int, rows: Sequence[Row]) -> None:
    """Each key once, its latest record below the end, and no key missing that has a value."""
    offsets = [row.offset for row in rows]
    assert offsets == sorted(set(offsets)), offsets
    assert not offsets or offsets[-1] < end, (offsets[-1], end)
    keyed = [row for row in rows if row.key is not None]
    keys = [row.key for row in keyed]
    assert len(keys) == len(set(keys)), (
        f"a key is there twice: {sorted(k for k in keys if keys.count(k) > 1 and k is not None)}"
    )
    latest = written.latest(end)
    for row in keyed:
        assert row.key is not None
        assert latest[row.key] == row, f"{row} is not the latest record of its key below {end}: {latest[row.key]}"
    missing = written.table(end).keys() - set(keys)
    assert not missing, f"keys are missing: {sorted(missing)}"
    without_key = [row for row in written.rows[:end] if row.key is None]
    assert [row for row in rows if row.key is None] == without_key


async def judge_plain(store: ObjectStore, topic: Topic, written: Written, partition: int = 0) -> int:
    """The version that counts, and the log from its end on: what a plain reader sees at this
    instant. How far that goes.
    """
    found = await read_plain_version(store, topic, partition)
    log = await read_plain_log(store, topic, partition)
    offsets = [row.offset for row in log]
    assert offsets == list(range(offsets[0], offsets[-1] + 1)) if offsets else True
    end, rows = found if found is not None else (0, [])
    if found is not None:
        judge_version(written, end, rows)
    assert not log or log[0].offset <= end, f"the log begins at {log[0].offset}, the version ends at {end}"
    behind = [row for row in log if row.offset >= end]
    till = log[-1].offset + 1 if log else end
    assert fold([*rows, *behind]) == written.table(max(end, till))
    return max(end, till)

"""Any records, in any batches over partitions and slots, in any compression: each is in Parquet
once, in order, with every column equal.
"""

from __future__ import annotations

import datetime as dt
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.protocol.batches.records import SCHEMA, decode_batch, encode_batch
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.files import columns
from ledgermq_ledger.parquet.reader import ParquetCache, read_parquet
from tests.virtual_time import run_virtual, virtual_sources
from tests.worlds.ledgers import append_and_wait
from tests.worlds.roots import Root, parquet_keys

PARTITIONS = 3
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

_optional_bytes = st.none() | st.binary(max_size=12)
_text = st.text(st.characters(codec="utf-8"), max_size=6)
_rows = st.fixed_dictionaries(
    {
        "key": _optional_bytes,
        "value": _optional_bytes,
        "headers": st.none()
        | st.lists(st.fixed_dictionaries({"key": st.none() | _text, "value": _optional_bytes}), max_size=3),
        "timestamp": st.none()
        | st.integers(-(2**61), 2**61).map(lambda us: pa.scalar(us, pa.timestamp("us", tz="UTC"))),
        "timestampType": st.none() | st.integers(0, 1),
        "tag": st.none() | _text,
    }
)
_batch = st.tuples(
    st.integers(0, PARTITIONS - 1), st.lists(_rows, min_size=1, max_size=5), st.sampled_from(["none", "lz4", "zstd"])
)
_slots = st.lists(st.lists(_batch, min_size=1, max_size=4), min_size=1, max_size=5)


def _record_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@settings(max_examples=60, deadline=None)
@given(
    slots=_slots,
    compact_after=st.sets(st.integers(0, 4)),
    row_group_bytes=st.sampled_from([1, 200, columns.ROW_GROUP_BYTES]),
)
def test_records_are_the_same_in_parquet(slots: list[list[Any]], compact_after: set[int], row_group_bytes: int) -> None:
    async def run() -> None:
        sources = virtual_sources()
        root = await Root.open(MemoryStore("test", sources), sources)
        topic = await root.create_topic("t", partitions=PARTITIONS, parquet_bloom_key="true")
        expected: dict[int, list[pa.RecordBatch]] = {}
        for number, batches in enumerate(slots):
            appends = []
            for partition, rows, compression in batches:
                data = encode_batch(_record_batch(rows), compression)
                appends.append(Batch(topic.id, partition, len(rows), crc32c(data), 0, 0, data))
                expected.setdefault(partition, []).append(_record_batch(rows))
            await append_and_wait(await root.writer(1), *appends)
            if number in compact_after:
                assert not (await root.compact()).failures
        assert not (await root.compact()).failures
        for partition, batches in expected.items():
            await _check_plain(root, partition, pa.Table.from_batches(batches))
            await _check_fetched(root, partition, pa.Table.from_batches(batches))

    before = columns.row_group_bytes_of
    columns.row_group_bytes_of = lambda file: row_group_bytes
    try:
        run_virtual(run)
    finally:
        columns.row_group_bytes_of = before


async def _check_plain(root: Root, partition: int, expected: pa.Table) -> None:
    found = [key for key in await parquet_keys(root.store) if f"/partition={partition}/" in key]
    tables = [pq.ParquetFile(io.BytesIO(await root.store.get(key))).read() for key in found]
    table = pa.concat_tables(tables)
    assert table.column("offset").to_pylist() == list(range(expected.num_rows))
    times = table.column("appended").to_pylist()
    assert times == sorted(times)
    assert set(table.column("topic").to_pylist()) == {"t"}
    assert set(table.column("partition").to_pylist()) == {partition}
    assert table.select(SCHEMA.names).cast(SCHEMA).equals(expected)


async def _check_fetched(root: Root, partition: int, expected: pa.Table) -> None:
    cache = ParquetCache(root.store, run_inline)
    checkpoint = await root.newest()
    batches: list[pa.RecordBatch] = []
    offset = 0
    while offset < expected.num_rows:
        for stored in await read_parquet(
            root.store, 1, checkpoint, root.topics["t"].id, partition, offset, 500, cache=cache
        ):
            assert stored.base_offset == offset
            batches.append(decode_batch(stored.data))
            offset = stored.end
    assert pa.Table.from_batches(batches).equals(expected)

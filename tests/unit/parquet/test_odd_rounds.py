"""Rounds over what is unusual: the largest values, very many tiny batches, names that look like
numbers, a store that throttles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from ledgermq.errors import Unavailable
from ledgermq.protocol.batches.records import encode_batch
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.topics.removed import remove as remove_topics
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.contract import Buffer, StoreThrottled
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.resilient import ResilientStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import bring_facts_into_force, compact_root
from ledgermq_ledger.topics.topic import METADATA, topic_key
from tests.stores.backends import file_store, seeded_sources
from tests.stores.faulty import Faults, FaultyStore
from tests.stores.one_put import OnePut
from tests.unit.parquet.duckdb_process import answers
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.batches import batch_of
from tests.worlds.ledgers import append_and_wait, encode_values, ledger_of
from tests.worlds.roots import Root, parquet_keys, read_everything, read_parquet_rows

ODD_NAMES = ["2024-01-01", "123", "1e5", "true", "null"]


async def test_the_largest_values_that_brokers_take() -> None:
    store = MemoryStore("", seeded_sources())
    root = await Root.open(store, seeded_sources())
    topic = await root.create_topic("t", parquet_target_bytes="1024")
    value = b"x" * (FRAME_PAYLOAD_BYTES_MAX - 4096)
    for number in range(2):
        data = encode_batch(batch_of([{"value": value}, {"key": None, "value": None}]), "zstd" if number else "none")
        await append_and_wait(await root.writer(1), Batch(topic.id, 0, 2, crc32c(data), 0, 0, data))
    assert not (await root.compact()).failures
    rows = await read_parquet_rows(store)
    assert list(rows["t", 0].values()) == [value, None, value, None]


async def test_very_many_batches_of_one_record() -> None:
    """A column in a thousand pieces is one when it is written, and one row group of the file."""
    store = MemoryStore("", seeded_sources())
    root = await Root.open(store, seeded_sources())
    topic = await root.create_topic("t", 2)
    writer = await root.writer(1)
    batches = [(number, encode_values([b"%d" % number], 1000)) for number in range(2000)]
    for begin in range(0, len(batches), 500):
        part = batches[begin : begin + 500]
        entries = [Batch(topic.id, p, 1, crc32c(data), 10**6, 10**6, data) for p in range(2) for _, data in part]
        await append_and_wait(writer, *entries)
    report = await root.compact()
    assert (report.records, report.files) == (4000, 2)
    rows = await read_parquet_rows(store)
    assert [list(rows["t", p].values()) for p in range(2)] == [[b"%d" % number for number, _ in batches]] * 2
    for key in await parquet_keys(store):
        assert pq.read_metadata(pa.BufferReader(await store.get(key))).num_row_groups == 1


class _Busy(OnePut):
    """With each plan of bundle 1 comes another record, and with the first one `meanwhile`."""

    def __init__(self, root: Root, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(root.store)
        self.plans = 0
        self._root = root
        self._meanwhile = meanwhile

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self.inner.put_if_absent(key, buffers)
        if key.startswith(keys.compactions(1)):
            self.plans += 1
            assert self.plans < 20, "it does not end"
            await self._root.produce("busy", (0, [b"more"]))
            if self.plans == 1:
                await self._meanwhile()


@pytest.mark.parametrize("how_far", ["removed", "noted", "freed"])
async def test_a_run_by_hand_ends_though_a_topic_is_deleted_meanwhile_and_others_are_written_to(how_far: str) -> None:
    """Plans leave the topic out from then on, so that its records are never in Parquet."""
    root = await Root.open(MemoryStore("", seeded_sources()), seeded_sources())
    engine = LocalEngine(root.sources, run_inline)
    await root.create_topic("leaves", parquet_target_bytes="1024")
    await root.create_topic("busy")
    for _ in range(3):
        await root.produce("leaves", (0, [b"x" * 1024]))
    await root.produce("busy", (0, [b"first"]))

    async def remove() -> None:
        await root.remove_topic("leaves")
        if how_far == "removed":  # the planner meets an unknown topic, and reads the catalog again
            await root.create_topic("new")
            await root.produce("new", (0, [b"first"]))
            return
        if how_far == "freed":
            [freed] = (
                await remove_topics(Compaction(root.store, root.cluster, root.sources, engine), await root.catalog())
            ).free
            await root.put_internal(METADATA, topic_key(freed.name), None)
        await bring_facts_into_force(
            ledger_of(root.store, 1, cluster=root.cluster, sources=root.sources), await root.catalog()
        )
        assert bool((await root.newest()).removed_topics) == (how_far == "noted")

    store = _Busy(root, remove)
    assert not (await root.compact(store)).failures
    assert "busy" in {topic for topic, _ in await read_parquet_rows(root.store)}


async def test_topics_with_names_that_look_like_something_else(tmp_path: Path) -> None:
    """Readers that take columns from the files see texts; those that take them from folders may
    not: docs/spark.md says what to do.
    """
    async with file_store(tmp_path / "root") as store:
        root = await Root.open(store, seeded_sources())
        for name in ODD_NAMES:
            await root.create_topic(name)
            await root.produce(name, (0, [name.encode()]))
        assert not (await root.compact()).failures
        assert await read_everything(root) == root.produced
        folder = tmp_path / "root" / "parquet"
        expected = sorted((name, 0, 0, name.encode()) for name in ODD_NAMES)
        columns = ["topic", "partition", "offset", "value"]
        assert (
            sorted(tuple(row.values()) for row in ds.dataset(folder).to_table(columns=columns).to_pylist()) == expected
        )
        assert sorted(pl.read_parquet(folder, hive_partitioning=False).select(columns).rows()) == expected
        query = (
            f"SELECT topic, partition, \"offset\", value FROM read_parquet('{folder}/**/*.parquet',"
            " hive_partitioning=false)"
        )
        assert sorted(answers(query)[0]) == expected
        for name in ODD_NAMES:
            assert pq.read_table(folder / f"topic={name}", partitioning=None)["value"].to_pylist() == [name.encode()]


@pytest.mark.parametrize(("throttle", "runs_max"), [(0.1, 1), (0.6, 100)])
@virtual
async def test_a_store_that_throttles_delays_rounds_and_nothing_else(throttle: float, runs_max: int) -> None:
    """Somewhat: no run fails.

    Badly: runs fail with the store's word, or after so many tries of a put, and the next ones go
    on.
    """

    sources = virtual_sources(1)
    inner = MemoryStore("", sources)
    root = await Root.open(inner, sources, bundles=3)
    await root.create_topic("t", 3, parquet_target_bytes="1024")
    await root.create_topic("u", 1, bundle=2)
    for number in range(8):
        await root.produce("t", *((p, [b"%d" % number] * 20) for p in range(3)))
        await root.produce("u", (0, [b"%d" % number]))
    store = ResilientStore(FaultyStore(inner, sources, Faults(throttle=throttle, delay_s_max=0.1)), sources)
    begun_s = asyncio.get_running_loop().time()
    failed = 0
    for _ in range(runs_max):
        report = await compact_root(store, sources, LocalEngine(sources, run_inline))
        assert {type(error) for error in report.failures.values()} <= {StoreThrottled, Unavailable}
        if not report.failures:
            break
        failed += 1
    assert not report.failures
    assert (failed > 0) == (throttle > 0.5)
    assert asyncio.get_running_loop().time() - begun_s > 1.0
    assert await read_everything(root) == root.produced
    assert {part: list(rows.values()) for part, rows in (await read_parquet_rows(inner)).items()} == root.produced


@pytest.mark.parametrize("bloom", ["true", "false"])
async def test_a_bloom_filter_on_the_key_is_a_setting_of_the_topic(tmp_path: Path, bloom: str) -> None:
    async with file_store(tmp_path / "root") as store:
        root = await Root.open(store, seeded_sources())
        await root.create_topic("t", parquet_bloom_key=bloom)
        await root.produce("t", (0, [b"abc", b"bcd"]))  # keys: a, b
        await root.compact()
        (key,) = await parquet_keys(store)
        footer = pq.read_metadata(tmp_path / "root" / key)
        filters = [footer.row_group(0).column(at).bloom_filter_length for at in range(footer.num_columns)]
        assert (filters[0] is not None) == (bloom == "true")
        assert not any(filters[1:])
        if bloom == "true":
            probe = (
                f"SELECT bloom_filter_excludes FROM parquet_bloom_probe('{tmp_path / 'root' / key}', 'key',"
                " '{}'::BLOB)"
            )
            assert answers(probe.format("a"), probe.format("q")) == [[(False,)], [(True,)]]

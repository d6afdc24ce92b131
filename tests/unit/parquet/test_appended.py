"""The column `appended`: it only rises, whatever clocks and puts do, it travels with a partition, retention goes by it,
and files from before it are read together with files that have it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from ledgermq.sources import Sources
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.files.parquet_rows import rises
from ledgermq_ledger.garbage.topics import retention
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.files.columns import APPENDED
from ledgermq_ledger.parquet.pages import PageReader
from tests.stores.backends import file_store
from tests.unit.parquet.duckdb_process import answers
from tests.virtual_time import virtual
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, parquet_keys

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS


async def opened(bundles: int = 2) -> Root:
    loop = asyncio.get_running_loop()
    sources = Sources(lambda: 10**15 + int(loop.time() * 1e6))
    return await Root.open(MemoryStore("appended", sources), sources, bundles=bundles)


async def tables(root: Root) -> list[pa.Table]:
    """Return the files of the one partition that there is, in order of offset."""
    found = [pq.ParquetFile(io.BytesIO(await root.store.get(key))).read() for key in await parquet_keys(root.store)]
    return sorted(found, key=lambda table: table["offset"][0].as_py())


async def times(root: Root) -> list[int]:
    return [time for table in await tables(root) for time in table[APPENDED].cast(pa.int64()).to_pylist()]


async def log_start_after_retention(root: Root) -> int:
    ledger = ledger_of(root.store, 1, cluster=root.cluster, sources=root.sources)
    await retention.apply(ledger, await root.catalog())
    return partition_of(await root.newest(), root.topics["t"].id, 0).log_start


async def listed(root: Root, name: str, bundle: int = 1) -> list[fmt.ParquetFile]:
    counters = partition_of(await root.newest(bundle), root.topics[name].id, 0)
    return await PageReader(root.store, bundle).files_from(counters, 0)


@virtual
async def test_it_is_the_date_of_the_segment_in_the_store_and_stands_in_the_file_list() -> None:
    root = await opened()
    await root.create_topic("t")
    begun_us = root.sources.now_us()
    for pause_s in (3, 5):
        await root.produce("t", (0, [b"a", b"b"]))
        await asyncio.sleep(pause_s)
    assert not (await root.compact()).failures
    (a, b, c, d) = await times(root)
    assert a == b == begun_us // 1000 * 1000
    assert c == d == a + 3_000_000
    (file,) = await listed(root, "t")
    assert (file.appended_min_us, file.appended_max_us) == (a, d)
    assert partition_of(await root.newest(), root.topics["t"].id, 0).appended_us == d


@virtual
async def test_it_never_falls_not_even_where_dates_do_nor_in_another_bundle() -> None:
    """Several puts are in flight, so a later segment may have an earlier date; a root that is copied has new ones."""
    root = await opened(bundles=3)
    topic = await root.create_topic("t")
    real = root.store.list

    async def earlier(prefix: str, **named: Any) -> Any:
        async for info in real(prefix, **named):
            shift = 50_000 if "/segments/" in prefix and info.key.endswith(("3", "5")) else 0
            yield type(info)(info.key, info.size, info.etag, info.modified_ms - shift)

    root.store.list = earlier  # type: ignore[method-assign]
    for _ in range(4):
        await asyncio.sleep(1)
        await root.produce("t", (0, [b"a"]))
        assert not (await root.compact()).failures
    await root.move("t", 0, 2)
    await root.produce("t", (0, [b"b"]))
    assert not (await root.compact()).failures
    found = await times(root)
    assert found == sorted(found)
    assert len(found) == 5
    assert found[-1] > found[0]
    assert partition_of(await root.newest(2), topic.id, 0).appended_us == found[-1]


@virtual
async def test_a_segment_that_no_list_showed_is_dated_all_the_same() -> None:
    """A round that begins with no date at all asks for each of them."""
    root = await opened()
    await root.create_topic("t")
    await root.produce("t", (0, [b"a"]))
    real = root.store.list

    async def nothing(prefix: str, **named: Any) -> Any:
        async for info in real(prefix, **named):
            if "/segments/" not in prefix:
                yield info

    root.store.list = nothing  # type: ignore[method-assign]
    assert not (await root.compact()).failures
    assert await times(root) == [root.sources.now_us() // 1000 * 1000]


@virtual
async def test_row_groups_are_as_large_as_the_topic_says() -> None:
    root = await opened()
    await root.create_topic("t", parquet_row_group_bytes=str(2**20))
    for _ in range(5):
        await root.produce("t", (0, [bytes(600_000)]))
    assert not (await root.compact()).failures
    (key,) = await parquet_keys(root.store)
    footer = pq.ParquetFile(io.BytesIO(await root.store.get(key))).metadata
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [2, 2, 1]


@pytest.mark.parametrize("has_column", [True, False], ids=["with the column", "an old file"])
@virtual
async def test_a_record_dated_a_year_ahead_keeps_nothing_for_longer(has_column: bool) -> None:
    root = await opened()
    now_ms = root.sources.now_ms()
    await root.create_topic("t", retention_ms=str(DAY_MS), parquet_appended=str(has_column).lower())
    await root.produce("t", (0, [b"before"]), timestamp_ms=now_ms)
    await root.produce("t", (0, [b"future"]), timestamp_ms=now_ms + YEAR_MS)
    assert not (await root.compact()).failures
    await root.produce("t", (0, [b"after"]), timestamp_ms=now_ms + 2 * DAY_MS)
    for hours, start in ((23, 0), (2, 2)):
        await asyncio.sleep(hours * 3600)
        assert await log_start_after_retention(root) == start


@virtual
async def test_an_old_file_is_as_old_as_its_object_not_as_the_clock_of_its_compactor_said() -> None:
    root = await opened()
    now_ms = root.sources.now_ms()
    await root.create_topic("t", retention_ms=str(DAY_MS), parquet_appended="false")
    await root.produce("t", (0, [b"a"]), timestamp_ms=now_ms)
    slow = Sources(lambda: root.sources.now_us() - 30_000 * DAY_MS)
    assert not (await root.compact(sources=slow)).failures
    (file,) = await listed(root, "t")
    assert file.committed_ms < now_ms - DAY_MS, "by that clock it would be too old at once"
    assert await log_start_after_retention(root) == 0


@virtual
async def test_versions_of_a_keyed_topic_keep_it_also_beside_files_that_lack_it() -> None:
    root = await opened()
    await root.create_topic("t", cleanup_policy="compact", parquet_appended="false")
    await root.produce("t", (0, [b"old"]))
    assert not (await root.compact()).failures
    await root.alter_topic("t", parquet_appended="true")
    await root.produce("t", (0, [b"new"]))
    assert not (await root.compact()).failures
    (key,) = [info.key async for info in root.store.list("keyed/") if info.key.endswith(".parquet")][-1:]
    table = pq.ParquetFile(io.BytesIO(await root.store.get(key))).read()
    assert table["value"].to_pylist() == [b"old", b"new"]
    assert [time is None for time in table[APPENDED].to_pylist()] == [True, False]


def test_fsck_finds_times_that_fall_or_are_missing() -> None:
    kind = pa.timestamp("us", tz="UTC")
    found = [rises(pa.chunked_array([pa.array(times, kind)])) for times in ([], [1], [1, 1, 2], [2, 1], [None, 1])]
    assert found == [True, True, True, False, False]


Rows = list[tuple[int, bytes, bool]]
"""(offset, value, whether the time of its append is known)"""


def by_pandas(folder: Path) -> Rows:
    return rows_of(pa.Table.from_pandas(pd.read_parquet(folder, partitioning=None)))


def by_pyarrow(folder: Path) -> Rows:
    return rows_of(ds.dataset(folder).to_table())


def by_duckdb(folder: Path) -> Rows:
    files = f"{folder}/topic=*/partition=*/*.parquet"
    (rows,) = answers(
        f"SELECT \"offset\", value, appended IS NOT NULL FROM read_parquet('{files}', hive_partitioning=false,"
        " union_by_name=true) ORDER BY 1"
    )
    return rows


def by_polars(folder: Path) -> Rows:
    files = f"{folder}/topic=*/partition=*/*.parquet"
    options: Any = {"missing_columns": "insert", "extra_columns": "ignore"}
    return rows_of(pl.scan_parquet(files, hive_partitioning=False, **options).collect().to_arrow())


def rows_of(table: pa.Table) -> Rows:
    known = table[APPENDED].is_valid().to_pylist() if APPENDED in table.schema.names else [False] * table.num_rows
    return sorted(zip(table["offset"].to_pylist(), table["value"].to_pylist(), known, strict=True))


@pytest.fixture(scope="module", params=[("false", "true"), ("true", "false")], ids=["old first", "new first"])
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with files of both kinds: those without the column are what earlier releases wrote, byte for byte but
    for their names (`tests/golden/parquet-schema-v1.txt`).
    """
    folder = tmp_path_factory.mktemp("mixed") / "root"

    async def fill() -> None:
        async with file_store(folder) as store:
            root = await Root.open(store, Sources())
            await root.create_topic("t", parquet_appended=request.param[0])
            await root.produce("t", (0, [b"a", b"b"]))
            assert not (await root.compact()).failures
            await root.alter_topic("t", parquet_appended=request.param[1])
            await root.produce("t", (0, [b"c"]))
            assert not (await root.compact()).failures

    asyncio.run(fill())
    return folder / "parquet"


@pytest.mark.parametrize("reader", [by_pandas, by_pyarrow, by_duckdb, by_polars])
def test_old_and_new_files_are_read_as_one(mixed: Path, reader: Callable[[Path], Rows]) -> None:
    assert [(offset, value) for offset, value, _ in reader(mixed)] == [(0, b"a"), (1, b"b"), (2, b"c")]

"""deltalake and polars read a Delta table that names merged files, at each version, and plain readers of the folder see
each row once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import polars as pl
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from ledgermq.sources import Sources
from tests.stores.backends import file_store
from tests.worlds.roots import Root
from tests.worlds.set_tables import KEEP_MS, registrar, set_table

ROUNDS = 7
ROWS = [(offset, b"%d" % offset) for offset in range(2 * ROUNDS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of topic t: seven rounds of two records, two merged files, a version after each round."""
    root_folder = tmp_path_factory.mktemp("merged") / "root"

    async def fill() -> None:
        async with file_store(root_folder) as store:
            root = await Root.open(store, Sources())
            await root.create_topic("t", parquet_merge_files="3")
            await set_table(root, 1, KEEP_MS)
            for number in range(ROUNDS):
                await root.produce("t", (0, [b"%d" % (2 * number), b"%d" % (2 * number + 1)]))
                assert not (await root.compact()).failures
                await registrar(root).catch_up()

    asyncio.run(fill())
    return root_folder / "parquet" / "topic=t"


def test_the_table_names_merged_files(folder: Path) -> None:
    names = [uri.rpartition("/topic=t/")[2].split("/")[0] for uri in DeltaTable(folder).file_uris()]
    assert sorted(names) == ["_merged", "_merged", "partition=0"]


def test_each_version_has_its_rows(folder: Path) -> None:
    newest = DeltaTable(folder).version()
    before = 0
    for version in range(newest + 1):
        by_deltalake = DeltaTable(folder, version=version).to_pyarrow_table(columns=["offset", "value"])
        rows = sorted(tuple(row.values()) for row in by_deltalake.to_pylist())
        by_polars = sorted(pl.read_delta(str(folder), version=version).select(["offset", "value"]).rows())
        assert rows == by_polars == ROWS[: len(rows)], version
        assert len(rows) >= before
        before = len(rows)
    assert before == len(ROWS)


def test_an_exchange_changes_no_row(folder: Path) -> None:
    history = DeltaTable(folder).history()
    assert [entry["operation"] for entry in history].count("OPTIMIZE") == 2


def test_readers_prune_merged_files_by_their_statistics(folder: Path) -> None:
    actions = DeltaTable(folder).get_add_actions(flatten=True)
    rows = {
        tuple(row) for row in zip(*(actions[name].to_pylist() for name in ("min.offset", "max.offset")), strict=True)
    }
    assert rows == {(0, 5), (6, 11), (12, 13)}


def test_plain_readers_see_each_row_once(folder: Path) -> None:
    by_pyarrow = ds.dataset(str(folder), partitioning=None, format="parquet").to_table(columns=["offset", "value"])
    by_polars = pl.read_parquet(str(folder / "partition=*" / "*.parquet"), hive_partitioning=False)
    assert sorted(tuple(row.values()) for row in by_pyarrow.to_pylist()) == ROWS
    assert sorted(by_polars.select(["offset", "value"]).rows()) == ROWS

"""Plain readers of a topic's folder, as docs/spark.md says how, pass over the log of its table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import polars as pl
import pytest

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.tables.formats.delta import DeltaLog
from tests.stores.backends import file_store
from tests.unit.parquet.duckdb_process import answers
from tests.worlds.roots import Root
from tests.worlds.set_tables import make_round, registrar, set_table

PATTERN = "parquet/topic=*/partition=*/*.parquet"


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """Two files of two records, a log checkpoint of the table, and the hint to it."""
    async with file_store(tmp_path / "root") as store:
        root = await Root.open(store, Sources())
        await root.create_topic("t", partitions=2)
        await set_table(root, 1)
        await make_round(root)
        await registrar(root).catch_up()
        log = DeltaLog(store, keys.parquet_topic("t"), Sources())
        await log.put_checkpoint(await log.read(), 0)
    return tmp_path / "root"


def test_the_ways_of_the_docs(folder: Path) -> None:
    assert list(folder.glob("parquet/topic=t/_delta_log/*.checkpoint.parquet"))
    by_pandas = pd.read_parquet(folder / "parquet", partitioning=None)
    by_polars = pl.read_parquet(folder / PATTERN, hive_partitioning=False)
    [by_duckdb] = answers(f"select * from read_parquet('{folder / PATTERN}', hive_partitioning=false)")
    assert len(by_pandas) == len(by_polars) == len(by_duckdb) == 4


def test_a_pattern_of_any_depth_finds_the_log_too(folder: Path) -> None:
    """docs/tables.md warns of it: these readers do not pass over names that begin with an underscore."""
    pattern = folder / "parquet/**/*.parquet"
    [rows] = answers(f"select * from read_parquet('{pattern}', hive_partitioning=false, union_by_name=true)")
    assert len(rows) > 4

"""What the README promises: pandas, pyarrow, DuckDB and polars read the Parquet files as they are,
each record once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pytest
from typer.testing import CliRunner

from ledgermq.cli.main import build
from ledgermq.sources import Sources
from tests.stores.backends import file_store
from tests.unit.parquet.duckdb_process import answers
from tests.worlds.filled_root import fill_root
from tests.worlds.roots import Root

Rows = list[tuple[str, int, int, bytes]]
"""(topic, partition, offset, value)"""

COLUMNS = ["topic", "partition", "offset", "value"]
EXPECTED = [("flights", 0, offset, value) for offset, value in enumerate((b"one", b"two", b"three", b"four"))]


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lake") / "root"
    asyncio.run(fill_root(root))
    assert CliRunner().invoke(build(), ["compact", str(root)]).exit_code == 0
    return root / "parquet"


def by_pandas(folder: Path) -> Rows:
    return list(pd.read_parquet(folder, partitioning=None)[COLUMNS].itertuples(index=False, name=None))


def by_pyarrow(folder: Path) -> Rows:
    return [tuple(row.values()) for row in ds.dataset(folder).to_table(columns=COLUMNS).to_pylist()]


def by_duckdb(folder: Path) -> Rows:
    query = f"SELECT topic, partition, \"offset\", value FROM '{folder}/**/*.parquet'"
    (rows,) = answers(query)
    return rows


def by_polars(folder: Path) -> Rows:
    return (
        pl.read_parquet(folder / "topic=*" / "partition=*" / "*.parquet", hive_partitioning=False)
        .select(COLUMNS)
        .rows()
    )


def test_temporary_files_of_tasks_do_not_disturb_other_readers(parquet: Path) -> None:
    """While a round is under way they lie below `_tmp`, half-written."""
    folder = parquet / "_tmp" / "0001-00000000000000000009-00"
    folder.mkdir(parents=True)
    (folder / "0123456789abcdef").write_bytes(b"PAR1 half a fi")
    for reader in (by_pandas, by_pyarrow, by_duckdb, by_polars):
        assert sorted(reader(parquet)) == EXPECTED
    with pytest.raises(pl.exceptions.PolarsError):
        pl.read_parquet(parquet)  # not by the folder: polars alone does not pass over names with "_"


@pytest.mark.parametrize("reader", [by_pandas, by_pyarrow, by_duckdb, by_polars])
def test_each_record_once(parquet: Path, reader: Callable[[Path], Rows]) -> None:
    assert sorted(reader(parquet)) == EXPECTED


async def test_files_of_a_hidden_topic_are_below_no_folder_that_others_read(tmp_path: Path) -> None:
    async with file_store(tmp_path / "root") as store:
        root = await Root.open(store, Sources())
        await root.create_topic("flights")
        await root.create_topic("__delayed_far", internal_kind="hidden")
        await root.produce("flights", (0, [b"one", b"two", b"three", b"four"]))
        await root.produce("__delayed_far", (0, [b"later"]))
        assert not (await root.compact()).failures
    hidden, shown = tmp_path / "root" / "hidden", tmp_path / "root" / "parquet"
    assert len(list(hidden.rglob("*.parquet"))) == 1
    for reader in (by_pandas, by_pyarrow, by_duckdb, by_polars):
        assert sorted(reader(shown)) == EXPECTED
    assert ds.dataset(hidden, format="parquet").files == [], "nor does a reader of the folder itself see them"


def test_duckdb_is_not_loaded_beside_other_tests() -> None:
    """Test modules are all imported before the first test runs.

    See tests/unit/parquet/duckdb_process.py.
    """
    assert "duckdb" not in sys.modules

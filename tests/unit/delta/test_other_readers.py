"""deltalake and polars read a table whose log LedgerMQ wrote, over files that compaction made: all rows,
at each version, whatever is left of the log. What they would write is refused.

DuckDB reads Delta by an extension that is not in its package, so here it reads the files that
deltalake names.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError

from ledgermq.sources import Sources
from ledgermq_ledger.delta.checkpoint import LastCheckpoint
from ledgermq_ledger.delta.names import FOLDER, commit_name
from ledgermq_ledger.delta.versions import draft_empty
from tests.stores.backends import file_store
from tests.unit.parquet.duckdb_process import answers
from tests.worlds.delta_tables import DeltaFolder, add_of, first_actions, registered, remove_of
from tests.worlds.roots import Root

Rows = list[tuple[int, int, bytes]]
"""(partition, offset, value)"""
COLUMNS = ["partition", "offset", "value"]
ROUNDS = 4
HIGH = 3_000_000_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of topic flights: four rounds over two partitions, the first without `appended`."""
    folder = tmp_path_factory.mktemp("lake") / "root"

    async def fill() -> None:
        async with file_store(folder) as store:
            root = await Root.open(store, Sources())
            await root.create_topic("flights", partitions=2, parquet_appended="false")
            for number in range(ROUNDS):
                if number == 1:
                    await root.alter_topic("flights", parquet_appended="true")
                for partition in (0, 1):
                    values = [b"%d.%d" % (number, i) for i in range(3 + partition)]
                    await root.produce("flights", (partition, values), timestamp_ms=1_700_000_000_000 + number)
                assert not (await root.compact()).failures

    asyncio.run(fill())
    return folder / "parquet" / "topic=flights"


@pytest.fixture
def topic(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / filled.name))


def files_of_rounds(topic: Path) -> list[list[Path]]:
    """By round, one file of each partition."""
    return [list(files) for files in zip(*(sorted((topic / f"partition={p}").iterdir()) for p in (0, 1)), strict=True)]


def rows_of(*numbers: int) -> Rows:
    return sorted(
        (partition, number * (3 + partition) + i, b"%d.%d" % (number, i))
        for number in numbers
        for partition in (0, 1)
        for i in range(3 + partition)
    )


def write_table(topic: Path, first: int = 0) -> DeltaFolder:
    """Versions from `first` on: rounds 0, 1, 2; then round 0 is removed; then round 3."""
    made, rounds = DeltaFolder(topic, first), files_of_rounds(topic)
    adds = [[add_of(topic, file) for file in files] for files in rounds]
    made.commit([*first_actions(), *adds[0], *(registered(p, 3 + p) for p in (0, 1))])
    for number in (1, 2):
        made.commit([*adds[number], *(registered(p, (3 + p) * (number + 1)) for p in (0, 1))])
    made.commit([remove_of(file) for file in adds[0]], "DELETE")
    made.commit([*adds[3], *(registered(p, (3 + p) * 4) for p in (0, 1))])
    return made


def by_deltalake(topic: Path, version: int | None = None) -> Rows:
    table = DeltaTable(topic, version=version).to_pyarrow_table(columns=COLUMNS)
    return sorted(tuple(row.values()) for row in table.to_pylist())


def by_polars(topic: Path, version: int | None = None) -> Rows:
    return sorted(pl.read_delta(str(topic), version=version).select(COLUMNS).rows())


def by_duckdb(topic: Path, version: int | None = None) -> Rows:
    files = [uri.removeprefix("file://") for uri in DeltaTable(topic, version=version).file_uris()]
    (rows,) = answers(f'SELECT partition, "offset", value FROM read_parquet({files!r}, union_by_name = true)')
    return sorted(rows)


READERS = pytest.mark.parametrize("read", [by_deltalake, by_polars, by_duckdb])


@pytest.mark.parametrize("read", [by_deltalake, by_polars])
def test_a_dropped_table_has_no_rows_although_its_files_are_gone(topic: Path, read: Callable[..., Rows]) -> None:
    made = write_table(topic)
    made.commit(draft_empty(made.table, 1).actions, "DELETE")
    for files in files_of_rounds(topic):
        for file in files:
            file.unlink()
    assert read(topic) == []


@READERS
def test_each_version_has_its_rows(topic: Path, read: Callable[..., Rows]) -> None:
    write_table(topic)
    assert read(topic) == rows_of(1, 2, 3)
    if read is by_duckdb:
        return  # it reads what deltalake names
    for version, rounds in enumerate(((0,), (0, 1), (0, 1, 2), (1, 2), (1, 2, 3))):
        assert read(topic, version) == rows_of(*rounds), version


@READERS
def test_a_log_checkpoint_is_enough(topic: Path, read: Callable[..., Rows]) -> None:
    """The commits below it are cleaned; a late commit in a number that is free again changes nothing."""
    made = write_table(topic)
    made.put_checkpoint()
    made.clean_below(made.table.version)
    (made.log / commit_name(1)).write_bytes((made.log / commit_name(4)).read_bytes())
    assert read(topic) == rows_of(1, 2, 3)


@pytest.mark.parametrize("read", [by_deltalake, by_polars])
@pytest.mark.parametrize("hint", ["none", "old", "gone"])
def test_the_hint_is_only_a_hint(topic: Path, read: Callable[..., Rows], hint: str) -> None:
    made = write_table(topic)
    made.put_checkpoint()
    made.clean_below(made.table.version)
    made.commit([])
    match hint:
        case "none":
            (made.log / "_last_checkpoint").unlink()
        case "gone":
            made.put_hint(LastCheckpoint(2, 9))
        case "old":
            old = (made.log / "_last_checkpoint").read_bytes()
            made.put_checkpoint()
            (made.log / "_last_checkpoint").write_bytes(old)
    assert read(topic) == rows_of(1, 2, 3)
    assert DeltaTable(topic).version() == 5


@pytest.mark.parametrize("read", [by_deltalake, by_polars])
def test_a_log_may_begin_at_a_high_number(topic: Path, read: Callable[..., Rows]) -> None:
    """As it does when it is made again beside commits that may yet land below."""
    made = write_table(topic, HIGH)
    made.put_checkpoint()
    for old in range(HIGH, made.table.version):
        (made.log / commit_name(old)).unlink()
    assert read(topic) == rows_of(1, 2, 3)
    assert DeltaTable(topic).version() == HIGH + 4


def test_statistics_leave_files_out_and_no_row(topic: Path) -> None:
    write_table(topic)
    table = DeltaTable(topic)

    def ask(condition: str) -> Rows:
        found = (
            QueryBuilder().register("t", table).execute(f'select partition, "offset", value from t where {condition}')
        )
        return sorted(tuple(row.values()) for row in pa.table(found).to_pylist())

    assert ask("partition = 1") == [row for row in rows_of(1, 2, 3) if row[0] == 1]
    assert ask('"offset" = 6') == [row for row in rows_of(1, 2, 3) if row[1] == 6]
    newest = "timestamp '2023-11-14T22:13:20.003Z'"
    assert ask(f"timestamp = {newest}") == rows_of(3)
    assert ask(f"timestamp > {newest}") == []
    lazy = pl.scan_delta(str(topic)).filter(pl.col("partition") == 1, pl.col("offset") >= 12)
    assert sorted(lazy.select(COLUMNS).collect().rows()) == [row for row in rows_of(3) if row[0] == 1]
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert {(row["min.partition"], row["min.offset"], row["max.offset"]) for row in actions} == {
        (p, (3 + p) * number, (3 + p) * (number + 1) - 1) for p in (0, 1) for number in (1, 2, 3)
    }


def test_the_registered_ends_are_read_back(topic: Path) -> None:
    write_table(topic)
    assert DeltaTable(topic).transaction_version("ledgermq/c1/7/1/end") == 16


def _names(topic: Path) -> list[str]:
    return sorted(path.relative_to(topic).as_posix() for path in topic.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_deltalake(path, pa.table({"partition": pa.array([9], pa.int32())}), mode="append"),
        lambda path: write_deltalake(path, DeltaTable(path).to_pyarrow_table(), mode="overwrite"),
        lambda path: DeltaTable(path).delete("partition = 0"),
        lambda path: DeltaTable(path).optimize.compact(),
        lambda path: DeltaTable(path).restore(1),
        lambda path: DeltaTable(path).vacuum(168, dry_run=False),
        lambda path: DeltaTable(path).vacuum(dry_run=False),
    ],
    ids=["append", "overwrite", "delete", "optimize", "restore", "vacuum of a week", "vacuum"],
)
def test_others_cannot_change_the_table(topic: Path, write: Callable[[Path], Any]) -> None:
    made = write_table(topic)
    before = _names(topic)
    try:
        write(topic)
    except DeltaError:
        pass
    log = sorted(path.name for path in (topic / FOLDER).iterdir())
    assert log == [commit_name(version) for version in range(made.table.version + 1)]
    assert set(before) <= set(_names(topic)), "a file of the topic is gone"
    assert by_deltalake(topic) == rows_of(1, 2, 3)

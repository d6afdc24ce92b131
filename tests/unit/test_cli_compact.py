"""`ledgermq compact`: Parquet files from all that a root holds, told as a table or as JSON."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ledgermq_ledger import keys
from ledgermq_tools.ledger.compact import command as compact
from tests.worlds.filled_root import fill_root
from tests.worlds.root_commands import RootCommand

run = RootCommand(compact)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    asyncio.run(fill_root(tmp_path / "root"))
    return tmp_path / "root"


def test_everything_goes_to_parquet(root: Path) -> None:
    code, found = run.json(root)
    assert code == 0
    assert (found["files"], found["records"], found["engine"]) == (1, 4, "local")
    (file,) = (root / "parquet" / "topic=flights" / "partition=0").glob("*.parquet")
    assert pq.read_table(file, partitioning=None)["value"].to_pylist() == [b"one", b"two", b"three", b"four"]
    assert run.json(root)[1]["records"] == 0


def test_the_table_says_the_same(root: Path) -> None:
    code, text, _ = run(root)
    assert code == 0
    assert "flights" not in text
    assert "records" in text
    assert "no damage found" in text


def test_only_the_bundles_that_are_named(root: Path) -> None:
    assert run.json(root, "--bundle", 2)[1]["records"] == 0
    assert run.json(root, "--bundle", 2, "--bundle", 1)[1]["records"] == 4


def test_a_damaged_ledger_is_reported_and_the_others_go_on(root: Path) -> None:
    path = root / keys.segment(1, 4)
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    code, found = run.json(root)
    assert code == 6
    assert [(f["object_key"], f["code"]) for f in found["findings"]] == [(keys.segment(1, 4), "DATA_DAMAGED")]


def test_garbage_that_cannot_be_told_is_reported_beside_what_was_done(root: Path) -> None:
    assert run.json(root)[0] == 0
    page = root / keys.file_page(1, 1)
    page.chmod(0o644)
    page.write_bytes(b"?" * 100)
    code, found = run.json(root)
    assert [(f["object_key"], f["code"]) for f in found["findings"]] == [(keys.file_page(1, 1), "DATA_DAMAGED")]
    assert code == 0, "every record is in Parquet"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("{root}", "--engine", "flink"), 2, "there is no engine 'flink'; choose one of local, spark"),
        (("{root}", "--bundle", "3"), 2, "bundles 0 to 2"),
        (("{root}/nothing",), 4, "there is no cluster at"),
    ],
)
def test_errors(root: Path, arguments: tuple[str, ...], code: int, text: str) -> None:
    found, _, stderr = run(*(a.format(root=root) for a in arguments))
    assert found == code
    assert text in stderr

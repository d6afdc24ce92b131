"""`ledgermq sql`: topics as tables, of Parquet files and of what is not compacted yet."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from ledgermq.client.consuming.message import TABLE_SCHEMA
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.view.ranges.range_read import OffsetRange
from ledgermq_tools.query import sql
from ledgermq_tools.query.tables import matching
from tests.worlds.root_commands import RootCommand
from tests.worlds.source_root import ALL, DAY, compact, fill

run = RootCommand(sql)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two thirds of topic t in Parquet files, one third in segments."""
    asyncio.run(fill(tmp_path / "root"))
    return tmp_path / "root"


def rows(root: Path, query: str) -> list[dict[str, Any]]:
    code, out, error = run(root, query, "--format", "jsonl")
    assert code == 0, error
    return [json.loads(line) for line in out.splitlines()]


def test_files_and_segments_are_one_table(root: Path) -> None:
    query = 'select topic, partition, "offset" from t order by partition, "offset"'
    assert [tuple(row.values()) for row in rows(root, query)] == ALL
    before = rows(root, 'select * from t order by partition, "offset"')
    asyncio.run(compact(root))
    assert rows(root, 'select * from t order by partition, "offset"') == before
    assert before[0] | {"headers": None} == {
        "key": before[0]["key"], "value": "0/0", "topic": "t", "partition": 0, "offset": 0,
        "timestamp": "1970-01-01T00:00:00.000000Z", "timestampType": 0, "headers": None, "tag": None,
    }  # fmt: skip


def test_a_bucket(moto_root: str) -> None:
    asyncio.run(fill(moto_root))
    code, out, error = run(moto_root, "select count(*) from t", "--format", "csv")
    assert (code, out) == (0, f"count_star()\n{len(ALL)}\n"), error


def test_a_topic_is_scanned_as_often_as_the_query_names_it(root: Path) -> None:
    query = 'select count(*) n from t x join t y using ("partition", "offset") where x.value = y.value'
    assert rows(root, query) == [{"n": len(ALL)}]
    assert rows(root, f'select (select count(*) from t) a, (select count(*) from "{DAY}") b') == [
        {"a": len(ALL), "b": 2}
    ]


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("partition = 1", 6),
        ('"offset" between 5 and 7', 4),
        ("epoch_us(timestamp) >= 3000", 12),
        ("timestamp >= make_timestamptz(3000)", 12),
        ("timestamp >= make_timestamptz(3000) or timestamp is null", 12),
        ("value = 'x5'::blob", 1),
        ("value = 'x5'::blob and partition = 0", 0),
    ],
)
def test_conditions(root: Path, condition: str, count: int) -> None:
    assert rows(root, f"select count(*) n from t where {condition}") == [{"n": count}]


def test_files_that_cannot_match_are_not_read(root: Path) -> None:
    (file,) = [
        path for path in root.glob("parquet/topic=t/partition=0/*.parquet") if keys.parse_parquet(
            path.relative_to(root).as_posix()
        ).first_offset == 0  # type: ignore[union-attr]
    ]  # fmt: skip
    file.chmod(0o644)
    file.write_bytes(b"x" * file.stat().st_size)
    assert rows(root, "select count(*) n from t where timestamp >= make_timestamptz(4000)") == [{"n": 8}]
    code, _, error = run(root, "select count(value) from t")
    assert code == 6
    assert "DATA_DAMAGED" in error


def test_ranges_of_a_condition_by_time() -> None:
    ranges = [
        OffsetRange(1, PartitionId(5, 0), 10 * i, 10 * i + 10, times_us=(100 * i, 100 * i + 99) if i < 3 else None)
        for i in range(4)
    ]
    time = ds.field("timestamp")
    at = pa.scalar(250, TABLE_SCHEMA.field("timestamp").type)
    assert [each.first for each in matching(ranges, time >= at)] == [20, 30]
    assert [each.first for each in matching(ranges, time.is_null())] == [0, 10, 20, 30], "a record may have no time"
    assert [each.first for each in matching(ranges, ~(time < at))] == [20, 30]
    assert [each.first for each in matching(ranges, ds.field("partition") == 1)] == []
    assert matching(ranges, None) == ranges


def test_what_a_query_may_not_do(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for query, code, text in [
        ("select * from nothing", 4, "topic 'nothing' does not exist"),
        ("select * from __metadata", 2, "belongs to the system"),
        ("selec", 2, "syntax error"),
        ("select nothing from t", 2, "nothing"),
        ("select 1; select 2", 2, "one statement"),
        ("create table u as select * from t", 2, "SELECT"),
        (f"copy (select 1) to '{tmp_path}/out.csv'", 2, "SELECT"),
        (f"select * from read_csv('{secret}')", 2, "disabled"),
        (f"select * from '{secret}'", 4, "does not exist"),
        ("set memory_limit = '1TB'", 2, "SELECT"),
    ]:
        found, _, error = run(root, query)
        assert (found, text in error) == (code, True), (query, found, error)
    assert not (tmp_path / "out.csv").exists()


def test_without_duckdb(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ledgermq_tools.query.run", raising=False)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, _, error = run(root, "select 1")
    assert code == 2
    assert "ledgermq[duckdb]" in error


def test_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, error = run(tmp_path / "empty", "select 1")
    assert code == 4
    assert "no cluster" in error


def test_a_query_with_little_memory(root: Path) -> None:
    query = "select count(*) n from (select t.*, i from t, range(100000) r(i) order by hash(i), value)"
    assert rows(root, query) == [{"n": 100_000 * len(ALL)}]


def test_formats(root: Path) -> None:
    query = "select value, 'a' a, 'b' a, '\\xff'::blob raw, 1.50::decimal(4,2) d from t where partition = 1 limit 1"
    assert rows(root, query) == [{"value": "x0", "a": "a", "a_2": "b", "raw_base64": "/w==", "d": "1.50"}]
    code, out, _ = run(root, query, "-f", "csv")
    assert (code, out) == (0, "value,a,a_2,raw,d\nx0,a,b,\\xff,1.50\n")
    code, out, error = run(root, "select i from range(1001) t(i)")
    assert code == 0
    assert "999" in out
    assert "1000" not in out
    assert "first 1000 rows" in error
    assert run(root, query, "-f", "value")[0] == 2
    assert "t" in run(root, "show tables", "-f", "csv")[1].splitlines()

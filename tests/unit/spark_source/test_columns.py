"""A query's own schema says which columns it gets; one that the source cannot give is refused by
name, before any task runs.
"""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType

from ledgermq.errors import InvalidConfig, InvalidFilter
from ledgermq.protocol.batches.records import SCHEMA
from ledgermq_ledger.keys import PartitionId
from ledgermq_spark.source.data_source import LedgerMQDataSource
from ledgermq_spark.source.options import COLUMNS, parse_options
from ledgermq_spark.source.rows import batches_of, record_columns, with_columns
from tests.worlds.source_root import ALL, compact, fill


def of(*columns: tuple[str, object]) -> StructType:
    return StructType([StructField(name, kind, nullable=False) for name, kind in columns])  # type: ignore[arg-type]


@pytest.mark.parametrize("compacted", [False, True])
def test_only_these_columns_are_given_in_their_order(tmp_path: Path, compacted: bool) -> None:
    folder = tmp_path / "root"
    asyncio.run(fill(folder))
    if compacted:
        asyncio.run(compact(folder))
    source = LedgerMQDataSource({"root": str(folder), "topic": "t"})
    for given in (
        of(("offset", LongType()), ("partition", IntegerType())),
        of(("tag", StringType()), ("offset", LongType())),
    ):
        reader = source.reader(given)
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        assert {tuple(batch.schema.names) for batch in batches} == {tuple(given.fieldNames())}
        assert sum(batch.num_rows for batch in batches) == len(ALL)


def test_the_sources_own_schema_is_every_column() -> None:
    source = LedgerMQDataSource({"root": "/root", "topic": "t"})
    assert with_columns(parse_options(source.options), source.schema()).columns == COLUMNS


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        (of(("values", BinaryType())), "did you mean 'value'"),
        (of(("TimestampTyp", IntegerType())), "did you mean 'timestampType'"),
        (of(("x", LongType())), "known: key, value"),
        (of(("value", StringType())), "the schema says that value is string, it is binary"),
        (of(("offset", IntegerType())), "offset is int, it is bigint"),
        (of(("headers", ArrayType(StringType()))), "it is array<struct<key:string,value:binary>>"),
        (of(("key", BinaryType()), ("key", BinaryType())), "one column twice"),
        (of(), "no column"),
    ],
    ids=str,
)
def test_what_the_source_does_not_have_is_refused(schema: StructType, error: str) -> None:
    source = LedgerMQDataSource({"root": "/nowhere", "topic": "t"})
    for reader in (source.reader, source.streamReader):
        with pytest.raises(InvalidConfig, match=error):
            reader(schema)


@pytest.mark.parametrize(("tag", "values"), [("", [b"1", b"2", b"3"]), ("red", [b"1"]), ("red || blue", [b"1", b"2"])])
def test_only_records_with_one_of_the_tags_are_given(tag: str, values: list[bytes]) -> None:
    options = parse_options({"root": "/r", "topic": "t", "tag": tag})
    columns = record_columns(options)
    records = [
        {"value": value, "tag": colour, "timestamp": 0, "timestampType": 0}
        for value, colour in ((b"1", "red"), (b"2", "blue"), (b"3", None))
    ]
    rows = pa.RecordBatch.from_pylist(records, schema=pa.schema([SCHEMA.field(name) for name in columns]))
    found = [row for batch in batches_of(rows, "t", PartitionId(1, 0), 0, options) for row in batch.to_pylist()]
    assert [row["value"] for row in found] == values


@pytest.mark.parametrize(
    ("given", "values", "columns"),
    [
        ({"filter": "red || blue"}, [b"1", b"2"], {"value", "tag"}),
        ({"filter": "n > 1"}, [b"2", b"3"], {"value", "headers"}),
        ({"filter": "n > 1 AND TAGS IS NULL"}, [b"3"], {"value", "headers", "tag"}),
        ({"filter": "n > 1", "tag": "red || blue"}, [b"2"], {"value", "headers", "tag"}),
        ({"filter": "*"}, [b"1", b"2", b"3"], {"value"}),
    ],
)
def test_only_records_that_pass_the_filter_are_given(
    given: dict[str, str], values: list[bytes], columns: set[str]
) -> None:
    """Also in a query that gets the column `value` alone: the others are read for the filter."""
    options = replace(parse_options({"root": "/r", "topic": "t", **given}), columns=("value", "offset"))
    options = pickle.loads(pickle.dumps(options))
    names = record_columns(options)
    assert set(names) == columns
    records = [
        {"value": value, "tag": colour, "headers": [{"key": "n", "value": value}]}
        for value, colour in ((b"1", "red"), (b"2", "blue"), (b"3", None))
    ]
    rows = pa.RecordBatch.from_pylist(records, schema=pa.schema([SCHEMA.field(name) for name in names]))
    found = [row for batch in batches_of(rows, "t", PartitionId(1, 0), 7, options) for row in batch.to_pylist()]
    assert [row["value"] for row in found] == values
    assert [row["offset"] for row in found] == [6 + int(value) for value in values]


def test_a_filter_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidFilter, match="at character 4, at the end"):
        parse_options({"root": "/r", "topic": "t", "filter": "n >"})
    with pytest.raises(InvalidConfig, match="functions run in brokers"):
        parse_options({"root": "/r", "topic": "t", "filter": "FUNCTION('vip') AND n > 5"})

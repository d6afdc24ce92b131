"""A query's own schema says which columns it gets; one that the source cannot give is refused by
name, before any task runs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType

from ledgermq.errors import InvalidConfig
from spark.source.data_source import LedgerMQDataSource
from spark.source.options import COLUMNS
from spark.source.rows import columns_of
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
    assert columns_of(source.schema()) == COLUMNS


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        (of(("values", BinaryType())), "did you mean 'value'"),
        (of(("TimestampTyp", IntegerType())), "did you mean 'timestampType'"),
        (of(("x", LongType())), "there are key, value"),
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

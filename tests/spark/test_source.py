"""`spark.read.format("ledgermq")`: rows straight from the store, compacted or not, with no broker
anywhere.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from crc32c import crc32c
from pyspark.sql import DataFrame, Row, SparkSession

from ledgermq.protocol.batches.records import encode_batch
from ledgermq.sources import Sources
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.file.store import FileStore
from tests.spark.starting import started
from tests.worlds.batches import batch_of
from tests.worlds.ledgers import append_and_wait
from tests.worlds.roots import Root
from tests.worlds.source_root import ALL, DAY, compact, fill

pytestmark = pytest.mark.spark

COLUMNS = [
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
    ("headers", "array<struct<key:string,value:binary>>"),
    ("tag", "string"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path / "root"))
    return tmp_path / "root"


def read(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.read.format("ledgermq").options(root=str(folder), **({"topic": "t"} | options)).load()


def test_every_record_is_there_once_before_and_after_compaction(spark: SparkSession, folder: Path) -> None:
    """And they are those that plain Spark reads from Parquet then."""
    frame = read(spark, folder, minPartitions="3")
    assert frame.dtypes == COLUMNS
    columns = ["topic", "partition", "offset", "value", "timestamp"]
    before = sorted(tuple(row) for row in frame.select(columns).collect())
    assert [row[:3] for row in before] == ALL
    assert [bytes(row[3]) for row in before[:4]] == [b"0/0", b"0/1", b"0/2", b"1/0"]
    asyncio.run(compact(folder))
    assert sorted(tuple(row) for row in frame.select(columns).collect()) == before
    plain = spark.read.parquet(str(folder / "parquet" / "topic=t"))
    assert sorted(tuple(row) for row in plain.select(columns).collect()) == before


def test_a_query_without_records_is_empty_and_errors_say_what_is_wrong(spark: SparkSession, folder: Path) -> None:
    assert read(spark, folder, startingOffsets="latest").count() == 0
    with pytest.raises(Exception, match="did you mean 'startingOffsets'"):
        read(spark, folder, startOffsets="latest").count()
    with pytest.raises(Exception, match="topic 'none' does not exist"):
        read(spark, folder, topic="none").count()


def test_a_schema_chooses_columns(spark: SparkSession, folder: Path) -> None:
    options = {"root": str(folder), "topic": "t"}
    frame = spark.read.format("ledgermq").schema("offset LONG, partition INT").options(**options).load()
    assert frame.dtypes == [("offset", "bigint"), ("partition", "int")]
    assert sorted((row.partition, row.offset) for row in frame.collect()) == [row[1:] for row in ALL]
    stream = spark.readStream.format("ledgermq").schema("value BINARY").options(**options).load()
    query = started(stream.writeStream.format("memory").queryName("values_only").trigger(availableNow=True).start)
    assert query.awaitTermination(120)
    assert len(spark.table("values_only").collect()) == len(ALL)
    with pytest.raises(Exception, match="the schema says that value is string, it is binary"):
        spark.read.format("ledgermq").schema("value STRING").options(**options).load().count()


def test_nulls_headers_and_tags(spark: SparkSession, folder: Path) -> None:
    rows = [
        {
            "key": None,
            "value": None,
            "tag": "red",
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        },
        {"key": b"", "value": b"", "tag": None, "timestamp": 1_700_000_000_000_001},
        {"value": b"\xff\x00" * 1000, "tag": "blue", "headers": []},
    ]

    async def produce() -> None:
        async with FileStore(folder, Sources()) as store:
            root = await Root.open(store, Sources())
            topic = (await root.catalog()).living(DAY)
            data = encode_batch(batch_of(rows), "zstd")
            await append_and_wait(await root.writer(2), Batch(topic.id, 0, 3, crc32c(data), 0, 0, data))

    asyncio.run(produce())
    first, second, third = read(spark, folder, topic=DAY).where("offset >= 2").orderBy("offset").collect()
    assert (first.key, first.value, first.tag) == (None, None, "red")
    assert first.headers == [Row(key="h", value=b"1"), Row(key="h", value=None)]
    assert (bytes(second.key), bytes(second.value), second.headers, second.tag) == (b"", b"", None, None)
    assert second.timestamp.timestamp() == pytest.approx(1_700_000_000.000001, abs=1e-6)
    assert (bytes(third.value), third.headers) == (b"\xff\x00" * 1000, [])
    tagged = read(spark, folder, topic=DAY, tag="red || blue", includeHeaders="false")
    assert "headers" not in tagged.columns
    assert sorted(row.offset for row in tagged.collect()) == [2, 4]
    filtered = read(spark, folder, topic=DAY, filter="TAGS = 'red' OR h = 1 OR (h IS NULL AND TAGS = 'blue')")
    assert sorted(row.offset for row in filtered.select("offset").collect()) == [2, 4]
    narrow = spark.read.format("ledgermq").schema("offset LONG").options(root=str(folder), topic=DAY, tag="red").load()
    assert [row.offset for row in narrow.collect()] == [2], "though the query does not want the tag"

"""A stream through a real Spark: awkward names and records, and topics that go and come under it."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from crc32c import crc32c
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from ledgermq.protocol.batches.records import encode_batch
from ledgermq.sources import Sources
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.file.store import FileStore
from tests.spark.starting import started
from tests.worlds.batches import batch_of
from tests.worlds.ledgers import append_and_wait
from tests.worlds.roots import Root
from tests.worlds.source_root import compact

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(400)]

LARGE = b"0123456789" * 5_000_000
ROWS = [
    {"key": None, "value": None},
    {"key": b"", "value": b"", "tag": "", "headers": []},
    {"key": b"k", "value": LARGE, "headers": [{"key": "h", "value": None}, {"key": "h", "value": b"2"}]},
    {"key": b"last", "value": None},
]
NAMES = ("123", "2024-01-01", "true", "1e5")


class Digests:
    """Of what a query has given to `foreachBatch`."""

    def __init__(self) -> None:
        self.rows: list[tuple[object, ...]] = []

    def __call__(self, frame: DataFrame, number: int) -> None:
        columns = (
            "topic",
            "partition",
            "offset",
            "cast(key as string)",
            "length(value)",
            "md5(value)",
            "size(headers)",
            "tag",
        )
        self.rows += [tuple(row) for row in frame.selectExpr(*columns).collect()]


def start(spark: SparkSession, folder: Path, sink: Digests, *, now: bool, **options: str) -> StreamingQuery:
    frame = spark.readStream.format("ledgermq").options(root=str(folder / "root"), **options).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    return started((writer.trigger(availableNow=True) if now else writer).start)


async def with_root(folder: Path, *names: str, records: int = 0) -> None:
    """A topic of each name: with ROWS, or with so many records."""
    async with FileStore(folder / "root", Sources()) as store:
        root = await Root.open(store, Sources(), bundles=3)
        data = encode_batch(batch_of(ROWS), "zstd")
        for name in names:
            topic = await root.create_topic(name)
            if records:
                await root.produce(name, (0, [b"v"] * records))
            else:
                await append_and_wait(await root.writer(1), Batch(topic.id, 0, len(ROWS), crc32c(data), 0, 0, data))


@pytest.mark.parametrize("compacted", [False, True])
def test_names_that_look_like_numbers_nulls_and_large_values(
    spark: SparkSession, tmp_path: Path, compacted: bool
) -> None:
    asyncio.run(with_root(tmp_path, *NAMES))
    if compacted:
        asyncio.run(compact(tmp_path / "root"))
    sink = Digests()
    query = start(spark, tmp_path, sink, now=True, topicsPattern=".*", maxOffsetsPerTrigger="7")
    assert query.awaitTermination(300)
    assert query.exception() is None
    assert sorted(row[:3] for row in sink.rows) == sorted((name, 0, offset) for name in NAMES for offset in range(4))
    of_one = sorted((row[3:] for row in sink.rows if row[0] == "123"), key=repr)
    large = ("k", len(LARGE), hashlib.md5(LARGE).hexdigest(), 2, None)
    empty = ("", 0, hashlib.md5(b"").hexdigest(), 0, "")
    assert of_one == sorted([(None, None, None, None, None), empty, large, ("last", None, None, None, None)], key=repr)


def test_a_topic_that_is_made_again_under_a_query_ends_it(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(with_root(tmp_path, "t", records=5))
    sink = Digests()
    query = start(spark, tmp_path, sink, now=False, topic="t")
    while len(sink.rows) < 5:
        assert not query.awaitTermination(0.2)
    asyncio.run(make_again(tmp_path))
    with pytest.raises(Exception, match=r"topic 't' \(id 1\) was deleted and created again \(id \d\) under a query"):
        query.awaitTermination(300)
    lenient = start(spark, tmp_path, sink, now=True, topic="t", failOnDataLoss="false")
    assert lenient.awaitTermination(300)
    assert [row[2] for row in sink.rows] == [0, 1, 2, 3, 4, 0, 1, 2]


async def make_again(folder: Path) -> None:
    async with FileStore(folder / "root", Sources()) as store:
        root = await Root.open(store, Sources())
        root.topics = dict((await root.catalog()).topics_by_name)
        await root.remove_topic("t")
        await root.create_topic("t")
        await root.produce("t", (0, [b"w"] * 3))

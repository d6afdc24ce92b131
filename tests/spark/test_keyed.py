"""Keyed topics cleaned on Spark executors, and read by plain Spark and by the source."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession

from ledgermq.sources import Sources
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_spark.engine import SparkEngine
from tests.spark.starting import started
from tests.stores.backends import file_store
from tests.worlds.keyed_topics import Row, Written, fold, put_pairs
from tests.worlds.roots import Root

pytestmark = pytest.mark.spark


async def filled(folder: Path, spark: SparkSession) -> Written:
    """Cleaned on Spark, in several tasks; what was cleaned is gone from the log, and something was
    written since then.
    """
    written = Written()
    async with file_store(folder) as store:
        root = await Root.open(store, Sources())
        root.cluster = replace(root.cluster, parquet_min_age_ms=0)
        topic = await root.create_topic("t", cleanup_policy="compact", parquet_target_bytes="20000")
        draw = random.Random(3)

        async def put(count: int) -> None:
            pairs = [
                (b"k%d" % draw.randrange(60), None if draw.random() < 0.1 else draw.randbytes(500))
                for _ in range(count)
            ]
            await put_pairs(root, topic, written, pairs)

        local, catalog = LocalEngine(root.sources), await root.catalog()
        for engine in (local, SparkEngine(spark)):
            for _ in range(6):
                await put(20)
            while await compact_bundle(
                Compaction(store, root.cluster, root.sources, local), 1, catalog, everything=True
            ):
                pass
            assert await clean_bundle(
                Compaction(store, root.cluster, root.sources, engine), 1, catalog, everything=True
            )
        assert [info async for info in store.list("parquet/")] == []
        await put(5)
    return written


def plain_files(folder: Path) -> tuple[int, list[str]]:
    """As docs/keyed-topics.md shows it."""
    store, base = fs.FileSystem.from_uri(folder.as_uri())
    newest = {}
    objects = store.get_file_info(fs.FileSelector(f"{base}/keyed", recursive=True, allow_not_found=True))
    for path in sorted(info.path for info in objects if info.is_file and "/versions/" in info.path):
        version = json.loads(store.open_input_file(path).read())
        if version["topic"] == "t":
            newest[version["topic_id"], version["partition"]] = version
    [version] = newest.values()
    return version["end"], [f"{base}/{file['key']}" for file in version["files"]]


def through_the_source(spark: SparkSession, folder: Path, stream: bool) -> list[Row]:
    """By a batch query, or by a stream of several micro-batches."""
    if not stream:
        frame = spark.read.format("ledgermq").options(root=str(folder), topic="t", minPartitions="2").load()
        return [Row(row.offset, bytes(row.key), row.value) for row in frame.orderBy("offset").collect()]
    found: list[Row] = []

    def take(frame: DataFrame, _: int) -> None:
        found.extend(Row(row.offset, bytes(row.key), row.value) for row in frame.orderBy("offset").collect())

    frame = spark.readStream.format("ledgermq").options(root=str(folder), topic="t", maxOffsetsPerTrigger="100").load()
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(folder.parent / "checkpoint"))
    query = started(writer.trigger(availableNow=True).start)
    assert query.awaitTermination(120)
    assert query.exception() is None
    return found


@pytest.mark.slow
def test_a_keyed_topic_is_cleaned_on_executors_and_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "root"
    written = asyncio.run(filled(folder, spark))
    end, files = plain_files(folder)
    assert (end, len(files) > 1) == (240, True)
    rows = spark.read.parquet(*files).select("offset", "key", "value").collect()
    keys = [bytes(row.key) for row in rows]
    assert len(keys) == len(set(keys))
    assert {bytes(row.key): bytes(row.value) for row in rows if row.value is not None} == written.table(end)
    with pytest.raises(Exception, match=r"(?i)unable to infer schema|path"):
        spark.read.parquet(f"{folder}/keyed").count()
    for stream in (False, True):
        found = through_the_source(spark, folder, stream)
        assert all(row == written.rows[row.offset] for row in found), "at the offset where it was written"
        assert fold(found) == written.table(end + 5)
        below = [row.key for row in found if row.offset < end]
        assert (len(below), len(found)) == (len(set(below)), len(below) + 5)

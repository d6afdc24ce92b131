"""Spark's own source and sink for Kafka, `format("kafka")`, work with the Kafka port, in batches and streams."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.kafka.topics import create

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 200


def test_batches_and_streams(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    first, second = f"first-{uuid.uuid4().hex}", f"second-{uuid.uuid4().hex}"
    create(bootstrap, first, second)
    server = ("kafka.bootstrap.servers", bootstrap)

    def read(topic: str, **options: str) -> DataFrame:
        return spark.read.format("kafka").option(*server).option("subscribe", topic).options(**options).load()

    rows = [(f"k{number % 7}", f"v{number}") for number in range(ROWS)]
    spark.createDataFrame(rows, ["key", "value"]).write.format("kafka").option(*server).option("topic", first).save()
    text = ("CAST(key AS STRING)", "CAST(value AS STRING)")
    assert sorted(map(tuple, read(first).selectExpr(*text).collect())) == sorted(rows)
    since = read(first, startingTimestamp="1000", endingOffsets="latest", minPartitions="4")
    assert since.count() == ROWS
    assert read(first, includeHeaders="true").filter("headers IS NULL").count() == ROWS

    for _ in range(2):  # the second run finds nothing new
        stream = spark.readStream.format("kafka").option(*server).option("subscribe", first)
        stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(ROWS // 3))
        copied = stream.load().selectExpr("key", "value").writeStream.format("kafka").option(*server)
        copied = copied.option("topic", second).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = copied.trigger(availableNow=True).start()
        assert query.awaitTermination(240)
        assert query.exception() is None
    assert sorted(map(tuple, read(second).selectExpr(*text).collect())) == sorted(rows)

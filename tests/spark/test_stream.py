"""`spark.readStream.format("ledgermq")`: what Spark makes of it, with no broker anywhere. What a batch is, `tests/unit/spark` says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.source_root import ALL, compact, fill

pytestmark = pytest.mark.spark


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path / "root"))
    return tmp_path / "root"


class Sink:
    """What a query has given to `foreachBatch`: rows by batch; a batch that is given again counts once, as with any idempotent sink."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[str, int, int]]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = sorted((row.topic, row.partition, row.offset) for row in frame.select("topic", "partition", "offset").collect())
        assert self.batches.setdefault(number, rows) == rows, "a batch that runs again has the same rows"

    def rows(self) -> list[tuple[str, int, int]]:
        return sorted(row for batch in self.batches.values() for row in batch)


def run_all(spark: SparkSession, folder: Path, sink: Sink, **options: str) -> None:
    """Everything that is there now, on the checkpoint beside the root."""
    frame = spark.readStream.format("ledgermq").options(root=str(folder), **({"topic": "t"} | options)).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder.parent / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert query.exception() is None


def test_a_query_goes_on_where_it_stopped(spark: SparkSession, folder: Path) -> None:
    sink = Sink()
    run_all(spark, folder, sink, maxOffsetsPerTrigger="5")
    assert sink.rows() == ALL
    assert len(sink.batches) == 5
    asyncio.run(compact(folder))
    run_all(spark, folder, sink)
    assert sink.rows() == ALL

"""`spark.readStream.format("ledgermq")`: what Spark makes of it, with no broker anywhere.

What a batch is, `tests/unit/spark` says.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import ledgermq
from ledgermq.errors import UnknownGroup
from tests.e2e.processes import BrokerProcesses
from tests.spark.starting import started
from tests.waiting import wait_until
from tests.worlds.source_root import ALL, compact, fill

pytestmark = pytest.mark.spark


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path / "root"))
    return tmp_path / "root"


class Sink:
    """What a query has given to `foreachBatch`: rows by batch; a batch that is given again counts
    once, as with any idempotent sink.
    """

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[str, int, int]]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = sorted(
            (row.topic, row.partition, row.offset) for row in frame.select("topic", "partition", "offset").collect()
        )
        assert self.batches.setdefault(number, rows) == rows, "a batch that runs again has the same rows"

    def rows(self) -> list[tuple[str, int, int]]:
        return sorted(row for batch in self.batches.values() for row in batch)


def run_all(spark: SparkSession, folder: Path, sink: Sink, **options: str) -> None:
    """Everything that is there now, on the checkpoint beside the root."""
    frame = spark.readStream.format("ledgermq").options(root=str(folder), **({"topic": "t"} | options)).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder.parent / "checkpoint"))
    query = started(writer.trigger(availableNow=True).start)
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


@pytest.mark.timeout(180)
def test_a_running_query_shows_its_progress_as_a_group_and_needs_no_root(spark: SparkSession, tmp_path: Path) -> None:
    """Its records still come from the store: they are there once more when the brokers are gone."""
    root = tmp_path / "root"
    sink = Sink()
    with BrokerProcesses(tmp_path, root.as_uri()) as brokers:
        servers = brokers.start().address
        asyncio.run(produce(servers, 0, 50))
        frame = spark.readStream.format("ledgermq").options(servers=servers, topic="t", groupIdForCommit="job").load()
        query = started(
            frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint")).start
        )
        try:
            wait_until(lambda: len(sink.rows()) == 50)
            wait_until(lambda: asyncio.run(committed(servers)) == 50)
            asyncio.run(produce(servers, 50, 80))
            wait_until(lambda: asyncio.run(committed(servers)) == 80)
        finally:
            query.stop()
        assert sink.rows() == [("t", 0, offset) for offset in range(80)]
    run_all(spark, root, sink)
    assert len(sink.rows()) == 80


async def produce(target: str, first: int, end: int) -> None:
    async with ledgermq.connect(target) as client:
        if not first:
            await client.create_topic("t", 1)
        async with client.producer() as producer:
            for number in range(first, end):
                producer.send("t", b"%d" % number)
            await producer.flush()


async def committed(servers: str) -> int:
    async with ledgermq.connect(servers) as client:
        try:
            found = (await client.groups.describe("job")).committed
        except UnknownGroup:
            return 0
        return sum(each.stored.offset for each in found.values())

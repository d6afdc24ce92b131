"""A Spark stream reads a topic while brokers move a partition of it to another bundle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import ledgermq
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.root.open import open_store
from ledgermq_ledger.rounds.runner import compact_root
from tests.e2e.processes import BrokerProcesses
from tests.spark.starting import started
from tests.spark.test_stream import Sink, run_all
from tests.waiting import wait_until

pytestmark = pytest.mark.spark
PARTITIONS = 3
MOVING = 0


class Topic:
    """Topic t of running brokers. `ends`: of its partitions, as far as records were acknowledged."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.ends = [0] * PARTITIONS

    def create(self) -> None:
        async def create() -> None:
            async with ledgermq.connect(self._servers) as client:
                await client.create_topic("t", PARTITIONS)

        asyncio.run(create())

    def produce(self, count: int = 10) -> None:
        """So many records into each partition."""

        async def produce() -> None:
            async with ledgermq.connect(self._servers) as client, client.producer() as producer:
                for number in range(count * PARTITIONS):
                    producer.send("t", b"%d" % number, partition=number % PARTITIONS)
                await producer.flush()

        asyncio.run(produce())
        self.ends = [end + count for end in self.ends]

    def move(self) -> None:
        """Move a partition, and wait until it is open in its new bundle; its files are where they were."""

        async def move() -> None:
            async with ledgermq.connect(self._servers) as client:
                partitions = (await client.describe_topic("t")).partitions
                await client.move_partition("t", MOVING, partitions[MOVING + 1].bundle)

        asyncio.run(move())

    def is_moving(self) -> bool:
        async def is_moving() -> bool:
            async with ledgermq.connect(self._servers) as client:
                return (await client.describe_topic("t")).partitions[MOVING].moving_from is not None

        return asyncio.run(is_moving())


async def compact(url: str) -> None:
    """As a compaction service does: it owns no bundle."""
    sources = Sources()
    async with await open_store(url, sources=sources) as store:
        assert not (await compact_root(store, sources, LocalEngine(sources, run_inline))).failures


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stream_goes_on_while_a_partition_of_its_topic_moves(spark: SparkSession, tmp_path: Path) -> None:
    """Brokers compact nothing here, so the move does not end before the test hands its files over."""
    root, sink = tmp_path / "root", Sink()

    def start() -> StreamingQuery:
        frame = spark.readStream.format("ledgermq").options(root=str(root), topic="t", maxOffsetsPerTrigger="20").load()
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return started(writer.start)

    def has_all(*partitions: int) -> bool:
        rows = sink.rows()
        return all(len([row for row in rows if row[1] == each]) == topic.ends[each] for each in partitions)

    with BrokerProcesses(tmp_path, root.as_uri()) as brokers:
        brokers.start_all(2)
        topic = Topic(brokers.addresses)
        topic.create()
        topic.produce()
        query = start()
        try:
            wait_until(lambda: has_all(0, 1, 2))
            topic.move()
            before = topic.ends[MOVING]
            topic.produce()
            wait_until(lambda: has_all(1, 2))
            query.stop()
            query = start()
            topic.produce()
            wait_until(lambda: has_all(1, 2))
            assert topic.is_moving()
            assert [row[2] for row in sink.rows() if row[1] == MOVING] == list(range(before))
            while topic.is_moving():
                asyncio.run(compact(root.as_uri()))
            topic.produce()
            wait_until(lambda: has_all(0, 1, 2))
        finally:
            query.stop()
    assert query.exception() is None
    assert sink.rows() == [("t", each, offset) for each in range(PARTITIONS) for offset in range(topic.ends[each])]
    run_all(spark, root, sink)
    assert len(sink.rows()) == sum(topic.ends)

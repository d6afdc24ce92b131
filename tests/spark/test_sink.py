"""`df.write.format("ledgermq")`: rows of a frame into topics of real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import ledgermq
from ledgermq.client.partitioner import partition_of_key
from tests.e2e.processes import BrokerProcesses

pytestmark = pytest.mark.spark


@dataclass
class Cluster:
    brokers: BrokerProcesses
    root: Path

    @property
    def servers(self) -> str:
        return self.brokers.addresses

    def create(self, topic: str, partitions: int, **settings: object) -> None:
        async def run() -> None:
            async with ledgermq.connect(self.servers) as client:
                await client.create_topic(topic, partitions, {name.replace("_", "."): value for name, value in settings.items()})

        asyncio.run(run())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("sink")
    with BrokerProcesses(folder, f"file://{folder}/root") as brokers:
        brokers.start()
        yield Cluster(brokers, folder / "root")


def write(frame: DataFrame, cluster: Cluster, **options: str) -> None:
    frame.write.format("ledgermq").options(servers=cluster.servers, **options).mode("append").save()


def read(spark: SparkSession, cluster: Cluster, topic: str) -> list[Any]:
    frame = spark.read.format("ledgermq").options(root=str(cluster.root), topic=topic).load()
    return frame.orderBy("partition", "offset").collect()


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_rows_come_to_their_partitions_with_all_that_they_have(spark: SparkSession, cluster: Cluster, delivery: str) -> None:
    topic = f"all-{delivery}"
    cluster.create(topic, 3)
    moment = datetime(2026, 11, 21, 7, 30, 0, 1, tzinfo=UTC)
    rows = [
        (b"k1", "text", None, None, moment, "red"),
        (None, None, 2, [("h", b"1"), ("h", None)], None, None),
        (b"", "", 0, [], moment, ""),
        (b"k2", "x" * 5000, None, None, None, None),
    ]
    schema = "key binary, value string, partition int, headers array<struct<key:string,value:binary>>, timestamp timestamp, tag string"
    write(spark.createDataFrame(rows, schema), cluster, topic=topic, delivery=delivery)
    found = {bytes(row.key) if row.key is not None else None: row for row in read(spark, cluster, topic)}
    assert len(found) == 4
    assert [found[key].partition for key in (b"k1", None, b"", b"k2")] == [partition_of_key(b"k1", 3), 2, 0, partition_of_key(b"k2", 3)]
    assert bytes(found[b"k1"].value) == b"text"
    assert found[b"k1"].headers is None
    assert found[None].value is None
    assert [tuple(pair) for pair in found[None].headers] == [("h", b"1"), ("h", None)]
    assert found[b"k1"].timestamp.timestamp() == pytest.approx(moment.timestamp(), abs=1e-6)
    assert found[b"k1"].tag == "red"
    assert (bytes(found[b""].value), found[b""].headers, found[b""].tag) == (b"", [], "")
    assert abs(found[b"k2"].timestamp.timestamp() - datetime.now(UTC).timestamp()) < 300
    assert not list((cluster.root / "sinks").rglob("0*")), "nothing is left of a write that is done"

"""`df.write.format("ledgermq")` and `writeStream`: rows of a frame into topics of real brokers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructType

import ledgermq
from ledgermq.client.settings.partitioner import partition_of_key
from ledgermq.errors import MessageTooLarge, Unavailable
from ledgermq.protocol.limits import RECORD_BYTES_MAX
from ledgermq_spark.sink.writers import StagingWriter
from ledgermq_spark.source.data_source import LedgerMQDataSource
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
                await client.create_topic(
                    topic, partitions, {name.replace("_", "."): value for name, value in settings.items()}
                )

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


WAYS = {
    "staged": {"delivery": "exactlyOnce"},
    "transaction": {"transactional": "true"},
    "named-transaction": {"transactional": "true", "writeId": "all"},
    "sent": {"delivery": "atLeastOnce"},
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_come_to_their_partitions_with_all_that_they_have(spark: SparkSession, cluster: Cluster, way: str) -> None:
    topic = f"all-{way}"
    cluster.create(topic, 3)
    moment = datetime(2026, 11, 21, 7, 30, 0, 1, tzinfo=UTC)
    rows = [
        (b"k1", "text", None, None, moment, "red"),
        (None, None, 2, [("h", b"1"), ("h", None)], None, None),
        (b"", "", 0, [], moment, ""),
        (b"k2", "x" * 5000, None, None, None, None),
    ]
    schema = (
        "key binary, value string, partition int, headers array<struct<key:string,value:binary>>, timestamp timestamp,"
        " tag string"
    )
    write(spark.createDataFrame(rows, schema), cluster, topic=topic, **WAYS[way])
    found = {bytes(row.key) if row.key is not None else None: row for row in read(spark, cluster, topic)}
    assert len(found) == 4
    assert [found[key].partition for key in (b"k1", None, b"", b"k2")] == [
        partition_of_key(b"k1", 3),
        2,
        0,
        partition_of_key(b"k2", 3),
    ]
    assert bytes(found[b"k1"].value) == b"text"
    assert found[b"k1"].headers is None
    assert found[None].value is None
    assert [tuple(pair) for pair in found[None].headers] == [("h", b"1"), ("h", None)]
    assert found[b"k1"].timestamp.timestamp() == pytest.approx(moment.timestamp(), abs=1e-6)
    assert found[b"k1"].tag == "red"
    assert (bytes(found[b""].value), found[b""].headers, found[b""].tag) == (b"", [], "")
    assert abs(found[b"k2"].timestamp.timestamp() - datetime.now(UTC).timestamp()) < 300
    left = [str(file.relative_to(cluster.root / "sinks")) for file in (cluster.root / "sinks").rglob("*")]
    left = [name for name in left if not (cluster.root / "sinks" / name).is_dir()]
    kept = [f"all/{kind}/{0:020d}" for kind in ("decided", "done")] if way == "named-transaction" else []
    assert sorted(name for name in left if way == "named-transaction" or not name.startswith("all/")) == kept, (
        "nothing is left of a write that is done, except what says that a named one is done"
    )


def test_what_cannot_be_written_is_told_before_any_task_runs_or_with_its_row(
    spark: SparkSession, cluster: Cluster
) -> None:
    cluster.create("small", 1, max_message_bytes=1000)
    frame = spark.range(10).selectExpr(
        "string(id) AS value", "IF(id = 7, 3, 0) AS partition", "repeat('x', int(id) * 200) AS tag"
    )
    with pytest.raises(Exception, match=r"column 'id' .bigint.: records have no such column"):
        write(spark.range(1), cluster, topic="small")
    with pytest.raises(Exception, match="did you mean 'compression'"):
        write(frame, cluster, topic="small", compresion="zstd")
    with pytest.raises(Exception, match=r'use mode."append".'):
        frame.write.format("ledgermq").options(servers=cluster.servers, topic="small").mode("overwrite").save()
    with pytest.raises(
        Exception, match=r"row 7 of this task: column partition is 3; topic small has the partitions 0 to 0"
    ):
        write(frame.coalesce(1), cluster, topic="small")
    assert read(spark, cluster, "small") == [], "all or nothing"
    with pytest.raises(Exception, match=r"row 9 of this task has 1801 bytes .columns key 0, value 1801"):
        write(frame.selectExpr("concat(tag, value) AS value").coalesce(1), cluster, topic="small")


class Query:
    """Files, one a micro-batch, into a topic."""

    def __init__(self, spark: SparkSession, cluster: Cluster, folder: Path, topic: str, **options: str) -> None:
        self.options = options
        self.spark = spark
        self.cluster = cluster
        self.folder = folder
        self.topic = topic
        self.files = 0
        self.runs = 0
        (folder / "in").mkdir()

    def add(self, rows: int) -> None:
        """A file more. Its values say the file, so that values of all files differ."""
        self.files += 1
        text = "".join(f'{{"key": "k{i % 5}", "value": "{self.files}/{i}"}}\n' for i in range(rows))
        (self.folder / "in" / f"{self.files}.json").write_text(text)

    def run(self) -> None:
        """All that is there, then end; in another number of tasks each time."""
        self.runs += 1
        files = self.spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
        frame = files.json(str(self.folder / "in")).repartition(self.runs)
        writer = frame.writeStream.format("ledgermq").options(
            servers=self.cluster.servers, topic=self.topic, **self.options
        )
        query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    def forget_commit(self, epoch: int) -> None:
        """As if the driver had died after the data was written, and before Spark noted that."""
        for name in (f"{epoch}", f".{epoch}.crc"):
            (self.folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)

    def stored(self) -> list[str]:
        return sorted(bytes(row.value).decode() for row in read(self.spark, self.cluster, self.topic))

    def sink_files(self, kind: str) -> list[str]:
        queries = [write for write in (self.cluster.root / "sinks").iterdir() if write.name.count("-") == 4]
        [write] = [query for query in queries if any((query / "decided").iterdir())]
        return sorted(file.name for file in (write / kind).glob("*"))  # the folder goes with its last object


def test_a_micro_batch_that_comes_again_adds_nothing(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    """Although its rows come in other tasks then."""
    cluster.create("stream", 3)
    query = Query(spark, cluster, tmp_path, "stream")
    query.add(20)
    query.add(30)
    query.run()
    everything = sorted([f"1/{i}" for i in range(20)] + [f"2/{i}" for i in range(30)])
    assert query.stored() == everything
    query.forget_commit(1)
    query.run()
    assert query.stored() == everything, "published: nothing is added"
    query.add(10)
    query.run()
    everything = sorted(everything + [f"3/{i}" for i in range(10)])
    assert query.stored() == everything
    assert query.sink_files("decided") == query.sink_files("done") == [f"{epoch:020d}" for epoch in range(3)]
    assert query.sink_files("staged") == []


VALUES = StructType().add("value", BinaryType())


def writer_of(cluster: Cluster, topic: str, **options: str) -> StagingWriter:
    """The sink as driver and executors have it, without Spark between."""
    given = {"servers": cluster.servers, "topic": topic, **options}
    writer = LedgerMQDataSource(given).writer(VALUES, False)
    assert isinstance(writer, StagingWriter)
    return writer


def values(*given: bytes) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"value": pa.array([value], pa.binary())}) for value in given])


def count(cluster: Cluster, topic: str) -> int:
    async def run() -> int:
        async with ledgermq.connect(cluster.servers) as client:
            return sum((await client.list_offsets(topic)).values())

    return asyncio.run(run())


def staged(cluster: Cluster, name: str) -> int:
    return len(list((cluster.root / "sinks" / name / "staged").glob("*")))


def test_values_up_to_the_limit_of_a_request_and_no_larger(cluster: Cluster) -> None:
    """Random, so that compression makes them larger."""
    cluster.create("large", 1, max_message_bytes=32 * 1024 * 1024)
    largest = random.Random(1).randbytes(RECORD_BYTES_MAX)
    writer = writer_of(cluster, "large", writeId="large")
    messages = [writer.write(values(b"small", largest, b"small", b"x" * 20_000_000))]
    with pytest.raises(MessageTooLarge, match=r"row 1 of this task has 50000000 bytes .columns key 0, value 50000000"):
        writer.write(values(b"small", b"x" * 50_000_000))
    assert staged(cluster, "large") == len(messages[0].objects), "a task that fails leaves nothing"
    writer.commit(messages)
    assert count(cluster, "large") == 4


def test_a_named_write_is_repeated_and_one_without_name_goes_on_by_the_name_it_tells(cluster: Cluster) -> None:
    cluster.create("named", 2)
    for _ in range(3):
        writer = writer_of(cluster, "named", writeId="day=1")
        messages = [writer.write(values(b"a", b"b")), writer.write(values(b"c"))]
        writer.commit(messages)
        assert count(cluster, "named") == 3
    writer = writer_of(cluster, "named")
    messages = [writer.write(values(b"d"))]
    broken = StagingWriter(
        replace(writer.options, servers="127.0.0.1:1", root=f"file://{cluster.root}", delivery_timeout_s=1)
    )
    broken.name = writer.name
    with pytest.raises(
        Unavailable, match=rf"the same write with writeId='{writer.name}' continues where this one stopped"
    ):
        broken.commit(messages)
    broken.abort(messages)
    assert staged(cluster, writer.name) == 1, "the outcome of the commit is unknown"
    writer_of(cluster, "named", writeId=writer.name).commit(messages)
    assert count(cluster, "named") == 4


def test_a_write_of_which_a_task_fails_leaves_nothing(cluster: Cluster) -> None:
    cluster.create("failed", 2)
    writer = writer_of(cluster, "failed")
    messages = [writer.write(values(b"a" * 100, b"b")), None]
    assert staged(cluster, writer.name) == 1
    writer.abort(messages)
    assert staged(cluster, writer.name) == 0
    assert count(cluster, "failed") == 0

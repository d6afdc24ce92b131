"""Parquet compaction on Spark executors, and plain Spark reads of what it made."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.accumulators import _accumulatorRegistry
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ledgermq.errors import DataDamaged, InvalidConfig
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.topics.expired_files import remove_expired as remove_expired_files
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.plans import PlanOvertaken, read_plan
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.compacting.task import split_plan
from ledgermq_ledger.parquet.report import CompactionReport, Progress
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_spark.engine import SparkEngine, TaskFailure, run_on_executor
from ledgermq_spark.session import WORKER_ENVIRONMENT, open_session
from tests.stores.ahead import AheadStore
from tests.stores.backends import file_store, memory_store
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root
from tests.worlds.typed_values import avro, framed, record, register

pytestmark = pytest.mark.spark

KAFKA_COLUMNS = [
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
PLAIN_COLUMNS = [*KAFKA_COLUMNS, ("appended", "timestamp")]


async def _root(store: ObjectStore) -> Root:
    root = await Root.open(store, Sources(), bundles=3)
    await root.create_topic("flights", partitions=4)
    await root.create_topic("weather", bundle=2)
    for i in range(4):
        await root.produce(
            "flights", *((p, [b"%d-%d-%d" % (p, i, j) for j in range(50)]) for p in (0, 1, 3)), timestamp_ms=1000 + i
        )
        await root.produce("weather", (0, [b"w%d" % i]))
    return root


async def _compact(root: Root, spark: SparkSession, progress: list[Progress] | None = None) -> CompactionReport:
    show = progress.append if progress is not None else None
    return await compact_root(root.store, root.sources, SparkEngine(spark), on_progress=show)


def _values(frame: DataFrame) -> dict[tuple[str, int], list[bytes]]:
    found: dict[tuple[str, int], list[bytes]] = {}
    for row in frame.orderBy("topic", "partition", "offset").collect():
        values = found.setdefault((row.topic, row.partition), [])
        assert row.offset == len(values), "dense, from 0"
        values.append(bytes(row.value))
    return found


async def test_spark_reads_exactly_what_was_produced(spark: SparkSession, tmp_path: Path) -> None:
    async with file_store(tmp_path / "root") as store:
        root = await _root(store)
        progress: list[Progress] = []
        report = await _compact(root, spark, progress)
        assert not report.failures
        assert report.records == 604
        assert progress[-1].files_done == progress[-1].files_total
        frame = spark.read.parquet(str(tmp_path / "root" / "parquet"))
        assert frame.dtypes == PLAIN_COLUMNS
        assert _values(frame) == root.produced
        first = frame.where("topic = 'flights' and partition = 3 and offset = 0").collect()
        assert {name: value for name, value in first[0].asDict().items() if name != "appended"} == {
            "key": bytearray(b"3"),
            "value": bytearray(b"3-0-0"),
            "topic": "flights",
            "partition": 3,
            "offset": 0,
            "timestamp": dt.datetime(1970, 1, 1, 0, 0, 1),  # noqa: DTZ001 (Spark gives naive times of the session's zone)
            "timestampType": 0,
            "headers": None,
            "tag": None,
        }


async def test_every_folder_has_the_columns_of_the_kafka_source(spark: SparkSession, tmp_path: Path) -> None:
    async with file_store(tmp_path / "root") as store:
        root = await _root(store)
        await _compact(root, spark)
        for folder in ("topic=flights", "topic=flights/partition=1"):
            assert spark.read.parquet(str(tmp_path / "root" / "parquet" / folder)).dtypes == PLAIN_COLUMNS


@pytest.mark.parametrize("begins_with", ["false", "true"], ids=["old files first", "new files first"])
async def test_old_files_and_new_ones_are_read_as_one(spark: SparkSession, tmp_path: Path, begins_with: str) -> None:
    """Files without the column `appended` are what earlier releases wrote."""
    async with file_store(tmp_path / "root") as store:
        root = await Root.open(store, Sources())
        await root.create_topic("t", parquet_appended=begins_with)
        await root.produce("t", (0, [b"a", b"b"]))
        assert not (await root.compact()).failures
        await root.alter_topic("t", parquet_appended="true" if begins_with == "false" else "false")
        await root.produce("t", (0, [b"c"]))
        assert not (await root.compact()).failures
        folder = str(tmp_path / "root" / "parquet")
        assert _values(spark.read.parquet(folder)) == root.produced
        merged = spark.read.option("mergeSchema", "true").parquet(folder)
        assert _values(merged) == root.produced
        known = [row.appended is not None for row in merged.orderBy("offset").collect()]
        assert known == ([False, False, True] if begins_with == "false" else [True, True, False])
        source = spark.read.format("ledgermq").option("root", str(tmp_path / "root")).option("topic", "t").load()
        assert _values(source) == root.produced


async def test_typed_values_made_by_executors_are_read_by_plain_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Executors start the child processes that decode; a later schema adds a column."""
    one, two = record(("amount", "int")), record(("amount", "long"), ("city", ["null", "string"]))
    async with file_store(tmp_path / "root") as store:
        root = await Root.open(store, Sources())
        await root.create_topic("t", value_schema_subject="t-value")
        await register(root, one)
        await root.produce("t", (0, [framed(1, avro(one, {"amount": 1})), b"bad"]))
        assert not (await _compact(root, spark)).failures
        await register(root, two)
        await root.produce("t", (0, [framed(2, avro(two, {"amount": 2, "city": "Bonn"}))]))
        assert not (await _compact(root, spark)).failures
        frame = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "root" / "parquet")).orderBy("offset")
        typed = frame.select("value_typed.amount", "value_typed.city", "value_error").collect()
        assert [tuple(row) for row in typed] == [
            (1, None, None),
            (None, None, "the value names no schema"),
            (2, "Bonn", None),
        ]
        source = spark.read.format("ledgermq").option("root", str(tmp_path / "root")).option("topic", "t").load()
        assert _values(source) == root.produced


async def test_a_read_ends_with_file_not_found_or_a_run_without_gaps(spark: SparkSession, tmp_path: Path) -> None:
    """A DataFrame made before old files were deleted fails; made again, it sees the run that is
    left.
    """
    async with file_store(tmp_path / "root") as store:
        root = await _root(store)
        await _compact(root, spark)
        await root.produce("flights", (0, [b"new"]))
        await _compact(root, spark)
        path = str(tmp_path / "root" / "parquet")
        before = spark.read.parquet(path)
        topic = root.topics["flights"].id
        await advance_checkpoint(
            ledger_of(store, 1, cluster=root.cluster, sources=root.sources),
            log_start_move({PartitionId(topic, 0): 200}),
        )
        assert (
            await remove_expired_files(
                ledger_of(AheadStore(store, 3_600_000), 1, cluster=root.cluster, sources=root.sources),
                await root.catalog(),
            )
            == 1
        )
        with pytest.raises((PySparkException, Py4JJavaError), match="FILE_NOT_EXIST"):
            before.collect()
        left = spark.read.parquet(path).where("topic = 'flights' and partition = 0").collect()
        assert [(row.offset, bytes(row.value)) for row in left] == [(200, b"new")]


async def test_typed_errors_come_back_from_executors(spark: SparkSession, tmp_path: Path) -> None:
    async with file_store(tmp_path / "root") as store:
        root = await _root(store)
        key = keys.segment(1, 3)
        from tests.worlds.roots import NoTasks

        await root.compact(NoTasks(store), root.sources)
        await store.delete([key])  # after the plan has named it
        report = await _compact(root, spark)
        assert isinstance(report.failures[1], DataDamaged)
        assert report.failures[1].object_key == key
        assert set(report.failures) == {1}, "the other bundles are done"


async def test_a_task_of_a_finished_plan_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    async with file_store(tmp_path / "root") as store:
        root = await _root(store)
        from tests.worlds.roots import NoTasks

        await root.compact(NoTasks(store), root.sources)
        plan = await read_plan(store, 1, 1)
        assert plan is not None
        tasks = split_plan(plan, store.url, root.cluster, 2)
        assert not (await _compact(root, spark)).failures
        for file in plan.files:
            await store.delete([file.key])
        found = spark.sparkContext.parallelize(tasks, len(tasks)).map(run_on_executor).collect()
        assert [outcome.code for outcome in found if isinstance(outcome, TaskFailure)] == [PlanOvertaken.code] * len(
            tasks
        )
        with pytest.raises(PlanOvertaken):
            await SparkEngine(spark).run(store, tasks, lambda *_: None)
        assert tasks[0].work == f"Parquet compaction: bundle 1, plan 1 ({plan.put_id.hex()[:8]})"
        assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(tasks[0].work)) == 2, (
            "the job has the name of the round"
        )
        assert not [info.key async for info in store.list(keys.parquet_topic("flights"))]


async def test_rounds_leave_nothing_in_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    """A service runs them for months in one session."""
    async with file_store(tmp_path / "root") as store:
        root = await _root(store)
        before = set(_accumulatorRegistry)
        progress: list[Progress] = []
        assert not (await _compact(root, spark, progress)).failures
        assert progress[-1].files_done == progress[-1].files_total > 0, "it is told all the same"
        assert set(_accumulatorRegistry) == before


async def test_a_store_in_memory_is_refused(spark: SparkSession) -> None:
    async with memory_store() as store:
        root = await _root(store)
        report = await _compact(root, spark)
        assert {type(error) for error in report.failures.values()} == {InvalidConfig}
        assert not (await root.compact()).failures, "another engine finishes the plans"


def test_workers_of_our_session_keep_their_memory(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "environment", dict(spark.sparkContext.environment))
    assert open_session() is spark
    names = list(WORKER_ENVIRONMENT)
    [found] = (
        spark.sparkContext.parallelize([0], 1).map(lambda _: {name: os.environ.get(name) for name in names}).collect()
    )
    assert found == WORKER_ENVIRONMENT


async def test_times_before_1900_are_read_by_the_default_of_spark_3(spark: SparkSession, tmp_path: Path) -> None:
    """EXCEPTION is the default of Spark 3, and refuses a file that does not say which calendar it is in."""
    moment = dt.datetime(1850, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    async with file_store(tmp_path / "root") as store:
        root = await Root.open(store, Sources(), bundles=2)
        await root.create_topic("old")
        await root.produce("old", (0, [b"v"]), timestamp_ms=round(moment.timestamp() * 1000))
        await root.compact()
    frame = spark.read.option("datetimeRebaseMode", "EXCEPTION").parquet(str(tmp_path / "root" / "parquet"))
    [row] = frame.selectExpr("cast(timestamp as string) as time").collect()
    assert row.time == "1850-01-02 03:04:05"
    [file] = (tmp_path / "root" / "parquet").glob("topic=old/*/*.parquet")
    pq.write_table(pq.read_table(file, partitioning=None).replace_schema_metadata(None), tmp_path / "without.parquet")
    without = spark.read.option("datetimeRebaseMode", "EXCEPTION").parquet(str(tmp_path / "without.parquet"))
    with pytest.raises(PySparkException):
        without.select("timestamp").collect()

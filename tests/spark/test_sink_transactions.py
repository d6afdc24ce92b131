"""`transactional=true` in Spark itself: tasks that fail, run twice or are killed, micro-batches that
come again, drivers that die.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.e2e.processes import BrokerProcesses
from tests.spark.test_sink import Cluster, Query, count, read, write
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

TRANSACTIONAL = {"transactional": "true"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("sink-transactions")
    with BrokerProcesses(folder, f"file://{folder}/root") as brokers:
        brokers.start()
        yield Cluster(brokers, folder / "root")


def stored(spark: SparkSession, cluster: Cluster, topic: str) -> list[str]:
    return sorted(bytes(row.value).decode() for row in read(spark, cluster, topic))


def failing(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    """Rows of which the last task fails after it has given some."""

    def numbers(at: int):  # type: ignore[no-untyped-def]
        for row in range(rows):
            if at == partitions - 1 and row == rows // 2:
                raise ValueError("this task fails")
            yield (f"k{row % 5}", f"{at}/{row}")

    parts = spark.sparkContext.parallelize(range(partitions), partitions)
    return parts.flatMap(numbers).toDF("key string, value string")


def test_a_write_of_which_a_task_fails_leaves_nothing_that_any_reader_sees(
    spark: SparkSession, cluster: Cluster
) -> None:
    cluster.create("torn", 3)
    with pytest.raises(Exception, match="this task fails"):
        write(failing(spark, 20_000, 3), cluster, topic="torn", batchBytesMax="20000", **TRANSACTIONAL)
    assert count(cluster, "torn") == 0
    write(spark.range(100).selectExpr("string(id) AS value"), cluster, topic="torn", **TRANSACTIONAL)
    assert stored(spark, cluster, "torn") == sorted(map(str, range(100)))


def test_a_named_write_is_repeated_without_adding_anything(spark: SparkSession, cluster: Cluster) -> None:
    cluster.create("named", 2)
    for rows in (100, 100, 70):
        frame = spark.range(rows).selectExpr("string(id) AS value")
        write(frame, cluster, topic="named", writeId="day=1", **TRANSACTIONAL)
        assert count(cluster, "named") == 100
    write(
        spark.range(5).selectExpr("string(id) AS value"),
        cluster,
        topic="named",
        writeId="day=1",
        writeEpoch="1",
        **TRANSACTIONAL,
    )
    assert count(cluster, "named") == 105


def test_a_micro_batch_that_comes_again_adds_nothing(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    cluster.create("stream", 3)
    query = Query(spark, cluster, tmp_path, "stream", **TRANSACTIONAL)
    query.add(20)
    query.add(30)
    query.run()
    everything = sorted([f"1/{i}" for i in range(20)] + [f"2/{i}" for i in range(30)])
    assert query.stored() == everything
    query.forget_commit(1)
    query.run()
    assert query.stored() == everything, "committed: nothing is added"
    query.add(10)
    query.run()
    assert query.stored() == sorted(everything + [f"3/{i}" for i in range(10)])
    assert query.sink_files("decided") == query.sink_files("done") == [f"{epoch:020d}" for epoch in range(3)]
    assert query.sink_files("staged") == [], "nothing is staged as objects"


FILES, LINES = 4, 300


@pytest.mark.slow
@pytest.mark.timeout(1200)  # the machine may be busy; nothing waits for this to pass
def test_a_query_whose_driver_and_tasks_are_killed_writes_each_micro_batch_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The first run is killed at a random moment, soon after its first micro-batch became visible."""
    cluster.create("killed", 3)
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        lines = "".join(f"k{line % 7}/{number}/{line}\n" for line in range(LINES))
        (tmp_path / "in" / f"{number}.txt").write_text(lines)
    moments = random.Random(18)
    command = [sys.executable, "-m", "tests.spark.sink_process", str(tmp_path), cluster.servers, "killed"]
    for run in range(3):
        with (tmp_path / f"query-{run}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "transactional=true"], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        if run == 0:
            began = count(cluster, "killed")
            deadline = time.monotonic() + 120
            while process.poll() is None and count(cluster, "killed") == began and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(moments.uniform(0, 0.4))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(500)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        wait_until(lambda: count(cluster, "killed") % LINES == 0, 60)  # what is committed becomes visible, nothing else
        if process.returncode == 0:
            break
    assert process.returncode == 0, (tmp_path / f"query-{run}.log").read_text()
    assert count(cluster, "killed") == FILES * LINES
    decisions = [file.read_text() for file in (cluster.root / "sinks").glob("*-*-*-*-*/decided/*")]
    assert len(decisions) >= FILES
    assert all('"transactional_id": "spark-' in decision for decision in decisions)

"""A token that is given to Spark as an option opens the brokers, and Spark shows it nowhere: not in
plans, events, logs, the progress of a stream, or its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

import ledgermq.sync
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.spark.starting import started

pytestmark = pytest.mark.spark


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerProcesses]:
    options = (*QUICK, "--security=rules", "--super-principals=user:spark")
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), options) as running:
        running.start()
        yield running


def plans_of_finished_queries(spark: SparkSession) -> str:
    """The texts of the SQL tab of Spark's UI."""
    java: Any = spark._jsparkSession
    store = java.sharedState().statusStore()
    shown = store.executionsList()
    found = [shown.apply(number) for number in range(shown.size())]
    graphs = [
        store.planGraph(each.executionId()).makeDotFile(store.executionMetrics(each.executionId())) for each in found
    ]
    return "\n".join([*(each.physicalPlanDescription() + each.description() for each in found), *graphs])


@contextmanager
def logged_to(file: Path, spark: SparkSession) -> Iterator[None]:
    """Spark's own log, as its driver writes it, at level INFO."""
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    layout = log4j.core.layout.PatternLayout.createDefaultLayout()
    builder = log4j.core.appender.FileAppender.newBuilder()
    builder.setName("test")
    builder.setLayout(layout)
    appender = builder.withFileName(str(file)).build()
    appender.start()
    context = log4j.LogManager.getContext(False)
    root = context.getConfiguration().getRootLogger()
    root.addAppender(appender, None, None)
    spark.sparkContext.setLogLevel("INFO")
    try:
        yield
    finally:
        spark.sparkContext.setLogLevel("ERROR")
        root.removeAppender("test")
        context.updateLoggers()
        appender.stop()


def test_a_token_opens_the_brokers_and_is_shown_nowhere(
    spark: SparkSession, brokers: BrokerProcesses, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ledgermq.sync.connect(brokers.root_url) as client:
        token = client.access.create_token("spark").token
    with ledgermq.sync.connect(brokers.addresses, token=token) as client:
        client.create_topic("orders", 1)
        client.create_topic("copy", 1)
    options = {"servers": brokers.addresses, "token": token}
    with logged_to(tmp_path / "spark.log", spark):
        schema = StructType([StructField("value", StringType())])
        rows = spark.createDataFrame([("first",), ("second",)], schema)
        rows.write.format("ledgermq").options(**options, topic="orders").mode("append").save()
        frame = spark.read.format("ledgermq").options(**options, topic="orders").load()
        assert sorted(bytes(row.value) for row in frame.select("value").collect()) == [b"first", b"second"]
        frame.explain("extended")
        frame.explain("formatted")
        frame.createOrReplaceTempView("orders")
        described = str(spark.sql("explain extended select value from orders").collect())

        stream = spark.readStream.format("ledgermq").options(**options, topic="orders", groupIdForCommit="g").load()
        copied = stream.select("value").writeStream.format("ledgermq").options(**options, topic="copy")
        query = started(
            lambda: copied.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        progress = str(query.recentProgress) + str(query.lastProgress)
        failing = rows.write.format("ledgermq").options(**options | {"token": f"{token} {token}"}, topic="orders")
        with pytest.raises(Exception, match="a token is one word") as refused:
            failing.mode("append").save()
    with ledgermq.sync.connect(brokers.addresses, token=token) as client:
        assert client.read_arrow("copy").column("value").to_pylist() == [b"first", b"second"]

    plans = plans_of_finished_queries(spark)
    assert "ledgermq" in plans.lower()
    printed = "".join(capfd.readouterr())
    logged = (tmp_path / "spark.log").read_text()
    assert "Finished processing all available data" in logged
    texts = {"plans": plans, "described": described, "progress": progress, "error": str(refused.value)}
    texts |= {"printed": printed, "logged": logged}
    assert brokers.addresses in plans, "Spark shows options"
    assert "redacted" in plans, "and hides the token"
    for file in (tmp_path / "checkpoint").rglob("*"):
        if file.is_file():
            texts[str(file)] = file.read_bytes().decode(errors="replace")
    assert {name for name, text in texts.items() if token in text or token[-20:] in text} == set()


def test_spark_hides_the_options_that_hold_tokens(spark: SparkSession) -> None:
    """Spark's own pattern covers their names; `tls…` options are paths, and shown."""
    java: Any = spark._jsparkSession
    utils = spark.sparkContext._jvm.org.apache.spark.util.Utils  # type: ignore[union-attr]
    given = {"token": "secret-1", "tokenFile": "/secret-2", "TOKEN": "secret-3", "tlsCaFile": "/ca.pem"}
    seen = str(utils.redact(java.sparkContext().conf(), _pairs(spark, given)).toString())
    assert "/ca.pem" in seen
    assert not any(f"secret-{number}" in seen for number in (1, 2, 3)), seen


def _pairs(spark: SparkSession, given: dict[str, str]) -> Any:
    jvm: Any = spark.sparkContext._jvm
    found = jvm.java.util.ArrayList()
    for name, value in given.items():
        found.add(jvm.scala.Tuple2(name, value))
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(found).toSeq()

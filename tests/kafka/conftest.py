"""One broker on a folder for the tests of a module, with the port for clients of the Kafka protocol; and Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from infra import java, maven
from tests.kafka.nodes import served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    with served(tmp_path_factory.mktemp("root")) as node:
        assert node.kafka_address is not None
        yield node.kafka_address


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark with its source and sink for Kafka. Skips where there is no Java."""
    if java.installed() is None:
        pytest.skip(f"there is no Java {java.VERSION_MIN} or newer: `python infra/java.py` installs it")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("ledgermq-kafka-tests")
        .config("spark.jars", ",".join(map(str, maven.jars("spark_kafka").glob("*.jar"))))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()

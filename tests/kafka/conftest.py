"""One broker on a folder for the tests of a module, with the port for clients of the Kafka protocol; and Spark."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from infra import java, maven
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.settings.processes import load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address. The broker has a thread and an event loop of its own, as clients block theirs."""
    folder = tmp_path_factory.mktemp("root")
    address: list[str] = []
    is_up, is_over = threading.Event(), threading.Event()

    def run() -> None:
        asyncio.run(_serve(folder, address, is_up, is_over))

    thread = threading.Thread(target=run, name="broker")
    thread.start()
    assert is_up.wait(120)
    try:
        yield address[0]
    finally:
        is_over.set()
        thread.join(120)


async def _serve(folder: Path, address: list[str], is_up: threading.Event, is_over: threading.Event) -> None:
    settings = load_settings(
        port=0, kafka_port=0, auto_create_topics=True, default_partitions=2, background_compaction=False
    )
    node = await Node.start(folder.as_uri(), settings, Sources())
    async with node:
        assert node.kafka_address is not None
        address.append(node.kafka_address)
        is_up.set()
        while not is_over.is_set():
            await asyncio.sleep(0.05)


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

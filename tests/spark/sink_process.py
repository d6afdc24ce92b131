"""A streaming query into topics, in a process to be killed: python -m tests.spark.sink_process
FOLDER SERVERS TOPIC [NAME=VALUE…]

Reads text files of FOLDER/in, or with options of the source (root=…, from=TOPIC) a topic; writes
value and key, with transactional=true in transactions; one file, or so many offsets, a micro-batch;
ends when all that is there is written. Tasks are tried four times.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def rows_of(spark: SparkSession, folder: Path, options: dict[str, str]) -> DataFrame:
    if topic := options.pop("from", ""):
        source = spark.readStream.format("ledgermq").options(topic=topic, maxOffsetsPerTrigger="2000", **options).load()
        return source.select("key", "value", "headers", "timestamp", "tag")
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
    return lines.selectExpr("value", "split(value, '/')[0] AS key").repartition(3)


def main(folder: Path, servers: str, topic: str, options: dict[str, str]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
    )
    builder = builder.config("spark.python.authenticate.socketTimeout", "300s")  # a busy machine starts workers slowly
    spark = (
        builder.config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    of_sink = {name: options.pop(name) for name in ("transactional",) if name in options}
    rows = rows_of(spark, folder, options)
    writer = rows.writeStream.format("ledgermq").options(servers=servers, topic=topic, **of_sink)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], dict(argument.split("=", 1) for argument in sys.argv[4:]))

"""The Spark session of a compaction: spark-submit's where there is one, else a local one in this process."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

APP_NAME = "ledgermq-parquet-compaction"
WORKER_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024), "MALLOC_TRIM_THRESHOLD_": str(256 * 1024 * 1024)}
"""For Python on the executors: glibc gives blocks of megabytes back to the kernel as soon as they are let go, and takes them anew, zeroed
page by page: ranges that clients of S3 and HDFS hand over. Those of a folder are in Arrow's memory, which is kept anyway."""


def open_session() -> SparkSession:
    """Settings given by spark-submit or spark-defaults.conf win over these. Raises what Spark raises when there is no Java."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(APP_NAME)
    if "SPARK_SUBMIT_MODE" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        quiet: dict[str, bool | float | int | str | None] = {
            "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.showConsoleProgress": "false",
        }
        builder = builder.master(os.environ.get("MASTER", "local[*]")).config(map=quiet)
    spark = builder.getOrCreate()
    for name, value in WORKER_ENVIRONMENT.items():
        spark.sparkContext.environment.setdefault(name, value)
    return spark

"""Open the Spark session of a compaction: spark-submit's if there is one, otherwise a local one in
this process.
"""

from __future__ import annotations

import os
import sys

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from ledgermq.errors import InvalidConfig

APP_NAME = "ledgermq-parquet-compaction"
WORKER_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024), "MALLOC_TRIM_THRESHOLD_": str(256 * 1024 * 1024)}
"""Environment of Python on the executors. By default glibc returns freed blocks of megabytes to the
kernel at once, and new blocks are zeroed page by page. Clients of S3 and HDFS allocate their ranges
so. Those of a folder are in Arrow's memory, which is kept anyway.
"""


def open_session() -> SparkSession:
    """Open the session. Settings given by spark-submit or spark-defaults.conf override these.

    Raises InvalidConfig if there is no Java for it.
    """
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
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        where = os.environ.get("JAVA_HOME")
        found = f"JAVA_HOME is {where!r}" if where else "JAVA_HOME is not set"
        raise InvalidConfig(
            f"Spark did not start: it needs Java 17 or newer, and {found}; --engine local needs none"
        ) from error
    for name, value in WORKER_ENVIRONMENT.items():
        spark.sparkContext.environment.setdefault(name, value)
    return spark

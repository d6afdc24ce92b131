"""Run as a program on the host: `spark_counts.py PARQUET_URL ENDPOINT` reads with nothing but Spark
and prints what there is, as JSON.

By topic and partition: rows, distinct offsets, first and last offset, sum of the CRC-32s of the
values.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0",
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.sql.shuffle.partitions": 2,
}


def main(parquet: str, endpoint: str) -> None:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .config(map=SETTINGS | {"spark.hadoop.fs.s3a.endpoint": endpoint})
        .getOrCreate()
    )
    offset = sql.col("offset")
    found = (
        spark.read.parquet(parquet)
        .groupBy("topic", "partition")
        .agg(
            sql.count("*").alias("rows"),
            sql.count_distinct(offset).alias("offsets"),
            sql.min(offset).alias("first"),
            sql.max(offset).alias("last"),
            sql.sum(sql.crc32("value")).alias("crc"),
        )
        .collect()
    )
    print(json.dumps([row.asDict() for row in found]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Answer the question of the demo twice: what is the mean departure delay by carrier, and by hour
of the day?

Once by Spark on the Parquet files of the topic, with nothing but `spark.read.parquet`; once by
pandas on the original CSV. Delays are whole minutes, so both means must be the same to the last
bit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

ROW = "number LONG, carrier STRING, hour INT, dep_delay DOUBLE"
QUERY = """
SELECT carrier, hour, count(number) AS flights, count(dep_delay) AS departed, avg(dep_delay) AS mean_delay
FROM flights GROUP BY GROUPING SETS ((carrier), (hour))
"""
GROUPS = ("carrier", "hour")
SESSION: dict[str, bool | float | int | str | None] = {
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True)
class Answer:
    """Each table: the group, `flights` (all of them), `departed` (those with a delay, early ones
    are negative), `mean_delay` in minutes.
    """

    by_carrier: pd.DataFrame
    by_hour: pd.DataFrame

    @property
    def flights(self) -> int:
        return int(self.by_carrier["flights"].sum())

    @property
    def departed(self) -> int:
        return int(self.by_carrier["departed"].sum())


def ask_spark(parquet: str, settings: dict[str, str]) -> Answer:
    """Compute the answer with Spark. `parquet`: the folder `parquet/` of the cluster's root.

    `settings`: what Spark needs to reach it.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]").appName("flight delays").config(map=SESSION | settings).getOrCreate()
    )
    try:
        records = spark.read.parquet(parquet).where("topic = 'flights'")
        rows = records.select(sql.from_json(sql.col("value").cast("string"), ROW).alias("row")).select("row.*")
        rows.createOrReplaceTempView("flights")
        found = spark.sql(QUERY).toPandas()
    finally:
        spark.stop()
    return Answer(*(_one_group(found, group) for group in GROUPS))


def _one_group(found: pd.DataFrame, group: str) -> pd.DataFrame:
    rows = found[found[group].notna()].sort_values(group, ignore_index=True)
    return rows[[group, "flights", "departed", "mean_delay"]].astype({group: "int64"} if group == "hour" else {})


def ask_pandas(table: pd.DataFrame) -> Answer:
    return Answer(*(_grouped_by_pandas(table, group) for group in GROUPS))


def _grouped_by_pandas(table: pd.DataFrame, group: str) -> pd.DataFrame:
    grouped = table.groupby(group, sort=True)["dep_delay"]
    return pd.DataFrame(
        {"flights": grouped.size(), "departed": grouped.count(), "mean_delay": grouped.mean()}
    ).reset_index()


def difference(spark: Answer, pandas: Answer) -> str | None:
    """Return None if both answers are equal, otherwise the difference."""
    for name in ("by_carrier", "by_hour"):
        left, right = getattr(spark, name), getattr(pandas, name)
        try:
            pd.testing.assert_frame_equal(left, right, check_dtype=False, check_exact=True)
        except AssertionError as error:
            return f"{name}: {error}"
    return None

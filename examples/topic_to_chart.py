"""From a topic to a chart in three minutes: run it as a script, or cell by cell in an editor that
knows `# %%`.

    pip install "ledgermq[broker,spark]" matplotlib        # and Java 17 or newer
    python examples/topic_to_chart.py [ROOT]               # by default the folder ./ledgermq-example
                                                           # s3://… and hdfs://… work as well

Nothing has to be started first. Weather stations send a day of readings; Spark draws the day while
it is still being sent.
"""

# %% A topic with a day of readings. `connect(ROOT)` starts its own broker; with running brokers,
# pass their addresses instead.
import asyncio
import json
import math
import os
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import matplotlib as mpl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import ledgermq

mpl.use("Agg")
import matplotlib.pyplot as plt

GIVEN = sys.argv[1] if len(sys.argv) > 1 else "ledgermq-example"
ROOT = GIVEN if "://" in GIVEN else Path(GIVEN).absolute().as_uri()
STATIONS = {"harbour": 14.0, "hill": 9.0, "city": 17.0}
DAY = datetime(2026, 6, 21, tzinfo=UTC)


async def send(first_hour: int, end_hour: int) -> None:
    """A reading a minute of every station, in order by station: the key decides the partition."""
    chance = random.Random(first_hour)
    async with ledgermq.connect(ROOT) as client:
        if "weather" not in [topic.name for topic in await client.list_topics()]:
            await client.create_topic("weather", partitions=3)
        async with client.producer() as producer:
            for minute in range(first_hour * 60, end_hour * 60):
                for station, mean in STATIONS.items():
                    degrees = mean - 5 * math.cos(2 * math.pi * (minute - 180) / 1440) + chance.gauss(0, 0.6)
                    reading = json.dumps({"station": station, "degrees": round(degrees, 2)}).encode()
                    producer.send("weather", reading, key=station.encode(), timestamp=DAY + timedelta(minutes=minute))
            await producer.flush()


asyncio.run(send(0, 12))

# %% Spark reads the topic as a table. No broker runs now: records come from the bucket, compacted
# or not.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")


def by_hour(records: DataFrame) -> DataFrame:
    readings = records.select(
        "timestamp", f.from_json(f.col("value").cast("string"), "station STRING, degrees DOUBLE").alias("reading")
    )
    hour = f.hour("timestamp").alias("hour")
    return (
        readings.groupBy("reading.station", hour)
        .agg(f.avg("reading.degrees").alias("degrees"))
        .orderBy("station", "hour")
    )


weather = spark.read.format("ledgermq").option("root", ROOT).option("topic", "weather").load()
by_hour(weather).show(5)
print(f"{weather.count()} readings so far")

# %% The same as a stream: the second half of the day arrives while the query runs.
table: dict[tuple[str, int], float] = {}


def keep(frame: DataFrame, number: int) -> None:
    table.update({(row.station, row.hour): row.degrees for row in frame.collect()})
    print(f"batch {number}: {len(table)} hours of {len(STATIONS)} stations")


stream = spark.readStream.format("ledgermq").option("root", ROOT).option("topic", "weather").load()
query = by_hour(stream).writeStream.outputMode("complete").foreachBatch(keep).start()
asyncio.run(send(12, 24))
query.processAllAvailable()
query.stop()

# %% The chart.
figure, axes = plt.subplots(figsize=(9, 4.5))
for station in sorted(STATIONS):
    hours = sorted(hour for name, hour in table if name == station)
    axes.plot(hours, [table[station, hour] for hour in hours], marker="o", markersize=3, label=station)
axes.set_title("21 June 2026, by hour", loc="left", fontweight="bold")
axes.set_xlabel("hour (UTC)")
axes.set_ylabel("mean temperature, °C")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
figure.savefig("weather.png", dpi=130, bbox_inches="tight")
print("weather.png is drawn")
spark.stop()

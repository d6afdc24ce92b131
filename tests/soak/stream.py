"""A Spark stream of all topics, and plain Spark reads beside it in the same session, until
FILE.stop exists.

python -m tests.soak.stream ROOT_URL FOLDER_OF_PARQUET TOPICS CHECKPOINT FILE

Each batch is written down as its runs, one line of JSON with the batch's number: a batch that runs
again after a kill stands there twice, and the last counts. Plain reads are judged as those of
`plain_reads` and go to FILE.plain.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ledgermq_spark.session import open_session
from tests.soak.numbered import Run
from tests.soak.plain_reads import Found, PlainReads

PLAIN_EVERY_S = 20.0


def runs_in(frame: DataFrame) -> list[tuple[str, int, Run, int]]:
    """(topic, partition, run, age of its newest record in ms): islands of one shift.

    Fails where offsets are doubled or missing inside.
    """
    counter = f.conv(f.hex(f.substring("value", 1, 8)), 16, 10).cast("bigint")
    said = f.conv(f.hex(f.substring("value", 9, 4)), 16, 10).cast("int")
    rows = (
        frame.select(
            "topic", "partition", "offset", (counter - f.col("offset")).alias("shift"), said.alias("said"), "timestamp"
        )
        .groupBy("topic", "partition", "shift")
        .agg(
            f.min("offset"),
            f.max("offset"),
            f.count("*"),
            f.sum("offset"),
            f.max(f.abs(f.col("said") - f.col("partition"))),
            f.max("timestamp"),
        )
        .collect()
    )
    found = []
    for topic, partition, shift, first, last, count, total, astray, newest in rows:
        if count != last + 1 - first or total != (first + last) * count // 2:
            raise AssertionError(f"{topic}-{partition}: {count} rows from {first} to {last} of one shift")
        if astray:
            raise AssertionError(f"{topic}-{partition}: it holds values of another partition")
        found.append((topic, partition, Run(first, last, shift), round((time.time() - newest.timestamp()) * 1000)))
    return found


def main(root: str, parquet: str, topics: str, checkpoint: str, file: str) -> None:
    spark = open_session()
    spark.sparkContext.setLogLevel("ERROR")
    stop = Path(f"{file}.stop")

    def store(frame: DataFrame, number: int) -> None:
        found = runs_in(frame)
        with Path(file).open("a") as out:
            line = {
                "batch": number,
                "runs": [[t, p, run] for t, p, run, _ in found],
                "age_ms": min((age for *_, age in found), default=None),
            }
            print(json.dumps(line), file=out, flush=True)

    frame = spark.readStream.format("ledgermq").options(root=root, topics=topics, maxOffsetsPerTrigger="2000000").load()
    query = frame.writeStream.foreachBatch(store).option("checkpointLocation", checkpoint).start()
    plain = threading.Thread(target=plain_reads, args=(spark, Path(parquet), Path(f"{file}.plain"), stop), daemon=True)
    plain.start()
    print("stream runs", flush=True)
    while not stop.exists():
        if query.awaitTermination(0.5):
            break
    if query.exception() is not None:
        print(f"stream failed: {query.exception()}", flush=True)
        sys.exit(1)
    query.stop()
    plain.join(60)
    spark.stop()


def plain_reads(spark: SparkSession, folder: Path, file: Path, stop: Path) -> None:
    reads = PlainReads(folder)

    def by_spark(where: Path) -> Found:
        found: Found = defaultdict(list)
        for topic, partition, run, _ in runs_in(spark.read.parquet(str(where))):
            found[topic, partition].append(run)
        return found

    with file.open("a") as out:
        while not stop.exists():
            time.sleep(PLAIN_EVERY_S)
            if any(folder.glob("topic=*/partition=*/*.parquet")):
                try:
                    found, problems = reads.look("spark", by_spark)
                except Exception as error:  # a thread's own end would not be seen
                    found, problems = {}, [f"spark: {error!r}"]
                line = {
                    "reader": "spark",
                    "problems": problems,
                    "runs": [[*partition, runs] for partition, runs in found.items()],
                }
                print(json.dumps(line), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

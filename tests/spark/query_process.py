"""A streaming query in a separate process, to be killed: python -m tests.spark.query_process SINK
CHECKPOINT TRIGGER NAME=VALUE…

Each batch becomes one file of the sink, named by its number and put in place by one rename. One
that runs again replaces nothing, and must have the same rows. TRIGGER: `now` (all that is there,
then end) or `always`. Options of the source follow.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def main(sink: Path, checkpoint: str, trigger: str, options: dict[str, str]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
    spark = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "1g").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def put(frame: DataFrame, number: int) -> None:
        rows = [[row.partition, row.offset, hashlib.md5(row.value).hexdigest()] for row in frame.collect()]
        text = json.dumps(sorted(rows))
        file = sink / f"{number:06d}.json"
        if file.exists():
            if file.read_text() != text:
                (sink / "DIFFERENT").write_text(f"batch {number} had other rows when it ran again")
            return
        half = sink / f"_{number}"
        half.write_text(text)
        half.rename(file)

    frame = spark.readStream.format("ledgermq").options(**options).load()
    writer = frame.writeStream.foreachBatch(put).option("checkpointLocation", checkpoint)
    query = (writer.trigger(availableNow=True) if trigger == "now" else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], dict(argument.split("=", 1) for argument in sys.argv[4:]))

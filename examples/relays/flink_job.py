"""A job of Flink that reads a topic and writes another, exactly once, through the Kafka port of a broker.

    pip install apache-flink==2.3.0          # and Java 17
    python examples/relays/flink_job.py BOOTSTRAP JAR [FOLDER]

BOOTSTRAP: the address of a Kafka port. JAR: flink-sql-connector-kafka, from Maven. The job reads the topic `lines`, and
writes to `lengths`, as JSON, each line with its length. Each of Flink's checkpoints commits a transaction, so readers
see a line when the checkpoint is complete. `tests/kafka/test_flink.py` runs it.

Without FOLDER the job ends with the lines that are there now. With it, it goes on until it is stopped, keeps its
checkpoints in FOLDER, and begins at the newest one there: a job that was killed goes on, and each line comes once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

SOURCE = """
create table lines (line string) with (
  'connector' = 'kafka', 'topic' = 'lines', 'properties.bootstrap.servers' = '{bootstrap}',
  'properties.group.id' = 'flink', 'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = '{until}',
  'format' = 'raw')
"""
SINK = """
create table lengths (line string, length int) with (
  'connector' = 'kafka', 'topic' = 'lengths', 'properties.bootstrap.servers' = '{bootstrap}', 'format' = 'json',
  'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'flink-lengths',
  'properties.transaction.timeout.ms' = '600000')
"""


def main(bootstrap: str, jar: str, folder: str = "") -> None:
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = environment.get_config()
    settings.set("pipeline.jars", Path(jar).absolute().as_uri())
    settings.set("parallelism.default", "1")
    settings.set("execution.checkpointing.interval", "5s")
    if folder:
        settings.set("execution.checkpointing.dir", Path(folder).absolute().as_uri())
        settings.set("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION")
        if complete := sorted(Path(folder).glob("*/chk-*/_metadata"), key=lambda place: place.stat().st_mtime_ns):
            settings.set("execution.state-recovery.path", complete[-1].parent.absolute().as_uri())
            settings.set("execution.state-recovery.claim-mode", "CLAIM")  # and remove it, once there is a newer one
    for table in (SOURCE, SINK):
        until = "unbounded" if folder else "latest-offset"
        environment.execute_sql(table.format(bootstrap=bootstrap, until=until))
    environment.execute_sql("insert into lengths select line, char_length(line) from lines").wait()


if __name__ == "__main__":
    main(*sys.argv[1:])

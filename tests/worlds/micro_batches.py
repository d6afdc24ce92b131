"""A streaming query without Spark, in a separate process, to be killed: python -m
tests.worlds.micro_batches SINK CHECKPOINT TRIGGER NAME=VALUE…

It keeps its checkpoint as Spark's micro-batch engine does: the end of a batch is written down
before the batch runs, its completion after that, and where the last one is not complete it runs
again, from the end of the one before, or from the initial position. The same arguments and the same
sink as `tests.spark.query_process`, for a small part of its processor time.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

from ledgermq_spark.source.data_source import LedgerMQDataSource
from ledgermq_spark.source.streaming.stream import StreamReader


def main(sink: Path, checkpoint: Path, trigger: str, options: dict[str, str]) -> None:
    source = LedgerMQDataSource(options)
    reader, executor = source.streamReader(source.schema()), source.streamReader(source.schema())
    ends, done = checkpoint / "offsets", checkpoint / "commits"
    for folder in (ends, done):
        folder.mkdir(parents=True, exist_ok=True)
    if trigger == "now":
        reader.prepareForTriggerAvailableNow()
    number = max((int(file.name) for file in ends.iterdir() if file.name.isdigit()), default=-1)
    if number >= 0 and not (done / str(number)).exists():
        run(
            reader,
            executor,
            position(ends, reader, number - 1),
            position(ends, reader, number),
            sink / f"{number:06d}.json",
        )
        put(done / str(number), "{}")
    while True:
        start = position(ends, reader, number)
        end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
        if end == start:
            if trigger == "now":
                reader.stop()
                return
            continue
        number += 1
        put(ends / str(number), json.dumps(end))
        reader.commit(start)
        run(reader, executor, start, end, sink / f"{number:06d}.json")
        put(done / str(number), "{}")


def position(ends: Path, reader: StreamReader, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ends / str(number)).read_text()) if number >= 0 else reader.initialOffset()
    return found


def run(reader: StreamReader, executor: StreamReader, start: dict[str, Any], end: dict[str, Any], file: Path) -> None:
    rows = []
    for task in reader.partitions(start, end):
        for batch in executor.read(pickle.loads(pickle.dumps(task))):
            found = batch.select(["partition", "offset", "value"]).to_pylist()
            rows += [[row["partition"], row["offset"], hashlib.md5(row["value"]).hexdigest()] for row in found]
    text = json.dumps(sorted(rows))
    if not file.exists():
        put(file, text)
    elif file.read_text() != text:
        (file.parent / "DIFFERENT").write_text(f"{file.name} had other rows when it ran again")


def put(file: Path, text: str) -> None:
    half = file.parent / f"_{file.name}"
    half.write_text(text)
    half.rename(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], dict(argument.split("=", 1) for argument in sys.argv[4:]))

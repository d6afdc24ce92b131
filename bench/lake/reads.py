"""What a foreign reader reads of Parquet files: each query runs in a process of its own, whose bytes the kernel counts.

python -m bench.lake.reads < request      (JSON: reader, files, question, bounds; the answer as JSON)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

READERS = ("duckdb", "polars")
QUESTIONS = ("timestamp", "appended", "key", "sum of a typed field", "sum of parsed JSON")
"""The first three add up the sizes of values: between two times in microseconds, or of one key."""


def read(reader: str, files: list[Path], question: str, bounds: list[Any]) -> dict[str, Any]:
    """Return `found`, the sum, `bytes` that were read from files, `cpu_s` and `wall_s`."""
    request = {"reader": reader, "files": [str(path) for path in files], "question": question, "bounds": bounds}
    environment = os.environ | {"POLARS_FORCE_ASYNC": "1"}  # mapped files would not be counted
    command = [sys.executable, "-m", "bench.lake.reads"]
    done = subprocess.run(
        command, input=json.dumps(request).encode(), stdout=subprocess.PIPE, env=environment, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _read_bytes() -> int:
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def _by_duckdb(files: list[str], question: str, bounds: list[Any]) -> Any:
    import duckdb

    connection = duckdb.connect(config={"threads": 1})
    where = "true"
    if question in ("timestamp", "appended"):
        first, end = (datetime.fromtimestamp(each / 1e6, UTC).isoformat() for each in bounds)
        where = f"{question} >= timestamptz '{first}' and {question} < timestamptz '{end}'"
    elif question == "key":
        where = f"key = encode('{bounds[0]}')"
    what = {
        "sum of a typed field": "sum(value_typed.amount)",
        "sum of parsed JSON": "sum(cast(json_extract(decode(value[6:]), '$.amount') as double))",
    }.get(question, "sum(octet_length(value))")
    named = ", ".join(f"'{path}'" for path in files)
    return connection.execute(f"select {what} from read_parquet([{named}]) where {where}").fetchall()[0][0]


def _by_polars(files: list[str], question: str, bounds: list[Any]) -> Any:
    import polars as pl

    frame = pl.scan_parquet(files)
    if question in ("timestamp", "appended"):
        first, end = (pl.lit(each).cast(pl.Datetime("us", "UTC")) for each in bounds)
        frame = frame.filter((pl.col(question) >= first) & (pl.col(question) < end))
    elif question == "key":
        frame = frame.filter(pl.col("key") == bounds[0].encode())
    elif question == "sum of a typed field":
        return frame.select(pl.col("value_typed").struct.field("amount").sum()).collect().item()
    else:
        raise SystemExit(f"polars is not asked for the {question}")
    return frame.select(pl.col("value").bin.size().sum()).collect().item()


def main() -> None:
    asked = json.load(sys.stdin)
    by = {"duckdb": _by_duckdb, "polars": _by_polars}[asked["reader"]]
    by(asked["files"][:1], asked["question"], asked["bounds"])  # modules are loaded, and threads started
    before, cpu_s, wall_s = _read_bytes(), time.process_time(), time.perf_counter()
    total = by(asked["files"], asked["question"], asked["bounds"])
    found = {
        "found": total,
        "bytes": _read_bytes() - before,
        "cpu_s": round(time.process_time() - cpu_s, 3),
        "wall_s": round(time.perf_counter() - wall_s, 3),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

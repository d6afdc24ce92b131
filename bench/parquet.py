"""P7: Parquet compaction beside a plain pyarrow write of the same rows, by processor time; the
Spark source beside Spark's own reader, and beside a source in Python that does nothing but read the
files (`bench.bare_source`).

Each runs in a separate process (`bench.compaction`, `bench.source_scan`): one core for the first,
one JVM for the second. Compaction runs as in a Python worker of Spark. In a broker or the
compaction service, where other tasks share the event loop, hand-overs to threads are added.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from bench.measures import Results
from infra import java

RUN_S_MAX = 300
MEGABYTES = 300
SCANNED = {1000: 600_000, 100: 3_000_000}
"""Bytes of a value: records."""
REQUESTS = "requests on S3 would cost"
COMPACTION, PLAIN_WRITE = "LedgerMQ", "pyarrow alone"
SOURCE, SOURCE_WITH_SCHEMA, NATIVE = "LedgerMQ", "LedgerMQ, schema given", "spark.read.parquet"
BARE = "a source in Python that only reads the files"


class Parquet:
    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._scale = results, rounds, scale
        self._value_bytes = [*SCANNED] if scale >= 1 else [1000]

    def run(self) -> None:
        for value_bytes in self._value_bytes:
            for _ in range(self._rounds):
                found = answer_of(
                    "bench.compaction", "--megabytes", str(int(MEGABYTES * self._scale)), "--values", str(value_bytes)
                )
                what = f"segments to Parquet, values of {value_bytes} B"
                self._results.add("P7", what, COMPACTION, "MB/s of a core", found["compaction_mb_per_cpu_s"])
                self._results.add("P7", what, PLAIN_WRITE, "MB/s of a core", found["plain_mb_per_cpu_s"])
                self._results.add("P7", f"{what}: {REQUESTS}", COMPACTION, "$/TB", found["dollars_per_tb"])
        if java.installed() is None:
            print("P7: no Java, so no scan by Spark", file=sys.stderr)
            return
        for value_bytes in self._value_bytes:
            with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as folder:
                shape = ("--records", str(int(SCANNED[value_bytes] * self._scale)), "--value-bytes", str(value_bytes))
                found = answer_of("bench.source_scan", folder, *shape, "--rounds", str(self._rounds))
            names = {SOURCE: "source", SOURCE_WITH_SCHEMA: "source_with_schema", NATIVE: "native", BARE: "bare"}
            for subject, name in names.items():
                for rate in found["mb_per_s"][name]:
                    self._results.add("P7", scan(value_bytes), subject, "MB/s", rate)


def scan(value_bytes: int) -> str:
    return f"Spark scan, values of {value_bytes} B"


def answer_of(module: str, *arguments: str) -> dict[str, Any]:
    """The JSON object that another measure prints.

    Raises RuntimeError, with what it said, where it fails.
    """
    home = java.installed()
    environment = os.environ | ({"JAVA_HOME": str(home)} if home is not None else {})
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{module} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return found

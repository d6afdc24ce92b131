"""Run Parquet compaction by PySpark as a separate job: what `ledgermq compact ROOT --engine spark`
does.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from cluster import LEDGERMQ


@dataclass(frozen=True)
class Compacted:
    files: int
    records: int
    segment_bytes: int
    parquet_bytes: int
    seconds: float
    """Without the start of Spark, but with the start of its tasks, which dominates: so little data
    proves nothing about rates.
    """


def compact(root_url: str) -> Compacted:
    """Compact. Raises RuntimeError with the job's output."""
    command = [LEDGERMQ, "compact", root_url, "--engine", "spark", "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the compaction job failed:\n{done.stdout}{done.stderr}")
    report = json.loads(done.stdout)
    return Compacted(*(report[name] for name in ("files", "records", "segment_bytes", "parquet_bytes", "seconds")))

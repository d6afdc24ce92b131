"""Parquet compaction by PySpark, as a job of its own: what `ledgermq compact ROOT --engine spark`
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
    """Without the start of Spark, but with that of its tasks, which is most of it: so little data
    says nothing about rates.
    """


def compact(root_url: str) -> Compacted:
    """Raises RuntimeError with what the job said."""
    command = [LEDGERMQ, "compact", root_url, "--engine", "spark", "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the compaction job failed:\n{done.stdout}{done.stderr}")
    report = json.loads(done.stdout)
    return Compacted(*(report[name] for name in ("files", "records", "segment_bytes", "parquet_bytes", "seconds")))

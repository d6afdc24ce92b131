"""Run DuckDB in a separate process: its binding reports 45 lines of "leaked instances" when a
process ends that ran other tests too.

python -m tests.unit.parquet.duckdb_process < queries      (JSON: a list of SQL texts; answers as a pickle)
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any


def answers(*queries: str) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each query."""
    command = [sys.executable, "-m", "tests.unit.parquet.duckdb_process"]
    done = subprocess.run(command, input=json.dumps(queries).encode(), capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found: list[list[tuple[Any, ...]]] = pickle.loads(done.stdout)
    return found


if __name__ == "__main__":
    import duckdb

    sys.stdout.buffer.write(pickle.dumps([duckdb.sql(query).fetchall() for query in json.load(sys.stdin)]))

"""The demo's whole job on a real server: brokers, a kill, Spark compaction, and Spark reading by
s3a:// or hdfs:// what pandas reads.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.real, pytest.mark.spark]


@pytest.mark.timeout(900)  # the first session downloads Spark's S3 client
@pytest.mark.parametrize("root", ["minio_root", "hdfs_root"])
def test_the_demo(request: pytest.FixtureRequest, root: str, tmp_path: Path) -> None:
    command = [sys.executable, PROJECT / "examples" / "demo" / "main.py", request.getfixturevalue(root)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=880, check=False)
    log = tmp_path / "demo-output" / "spark.log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    assert "equal: 16 carriers and 20 hours" in done.stdout
    assert (tmp_path / "demo-output" / "delays.png").stat().st_size > 10_000

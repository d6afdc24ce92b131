"""The demo's whole job on a real S3 server: brokers, a kill, Spark compaction, and Spark reading by s3a:// what pandas reads in the CSV."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.real, pytest.mark.spark]


@pytest.mark.timeout(900)  # the first session downloads Spark's S3 client
def test_the_demo(minio_root: str, tmp_path: Path) -> None:
    command = [sys.executable, PROJECT / "examples" / "demo" / "main.py", minio_root]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=880, check=False)
    log = tmp_path / "demo-output" / "spark.log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    assert "equal: 16 carriers and 20 hours" in done.stdout
    assert (tmp_path / "demo-output" / "delays.png").stat().st_size > 10_000

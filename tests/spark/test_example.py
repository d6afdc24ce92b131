"""The example of docs/spark.md, run as a newcomer runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(500)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "topic_to_chart.py"


def test_the_way_from_a_topic_to_a_chart(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, timeout=480, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2160 readings so far" in done.stdout
    assert "72 hours of 3 stations" in done.stdout
    assert (tmp_path / "weather.png").read_bytes().startswith(b"\x89PNG")

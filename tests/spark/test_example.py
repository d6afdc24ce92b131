"""The example of docs/spark.md, run as a newcomer runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.starting import NOT_STARTED, TRIES_MAX

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(1000)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "topic_to_chart.py"


def test_the_way_from_a_topic_to_a_chart(tmp_path: Path) -> None:
    for attempt in range(TRIES_MAX):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, EXAMPLE, "my data"], cwd=folder, capture_output=True, text=True, timeout=480, check=False
        )
        if NOT_STARTED not in done.stderr:
            break
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "my data" / "cluster.json").exists(), "a folder is a root"
    assert "2160 readings so far" in done.stdout
    assert "72 hours of 3 stations" in done.stdout
    assert (folder / "weather.png").read_bytes().startswith(b"\x89PNG")

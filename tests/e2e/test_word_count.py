"""The example of exactly once from topic to topic, run as a newcomer runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "word_count.py"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_words_are_counted_once_though_the_process_is_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, "my words"], cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert (tmp_path / "my words" / "cluster.json").exists(), "a folder is a root"
    assert len(re.findall(r"^killed (before|during|after) the commit$", done.stdout, re.MULTILINE)) == 4, done.stdout
    assert "9600 words counted, each once" in done.stdout

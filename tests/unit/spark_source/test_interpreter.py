"""An interpreter that lacks the package, as Spark takes it from PATH, is named by the error."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[3]


@pytest.mark.parametrize("chosen", [None, "/usr/bin/python3.99"])
def test_the_interpreter_that_lacks_the_package_is_named(tmp_path: Path, chosen: str | None) -> None:
    for name in ("pyspark", "py4j"):  # Spark gives its workers these two, and nothing else
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (tmp_path / name).symlink_to(Path(spec.origin).parent)
    code = "import pyspark_ledgermq as found; print(found.DefaultSource.name()); found.DefaultSource({})"
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(CLONE), *(str(CLONE / folder) for folder in ("ledger", "spark")), str(tmp_path)]
    )
    if chosen is not None:
        environment["PYSPARK_PYTHON"] = chosen
    command = [sys.executable, "-S", "-c", code]  # without site-packages
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "ledgermq\n", done.stderr
    (last,) = (line for line in done.stderr.splitlines() if line.startswith("ImportError: "))
    assert f"{sys.executable} (Python " in last
    assert "No module named" in last
    assert ("PYSPARK_PYTHON is not set" if chosen is None else chosen) in last
    assert "sys.executable" in last

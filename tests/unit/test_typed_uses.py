"""What type checkers find in programs that use the client: settings, names and results have types."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

from infra import setting_types

CLONE = Path(__file__).parents[2]
USES = CLONE / "tests" / "unit" / "typed_uses.py"


def wrong_lines() -> set[int]:
    wrong = {number for number, line in enumerate(USES.read_text().splitlines(), 1) if line.endswith("# wrong")}
    assert wrong, "some uses are wrong"
    return wrong


@pytest.mark.slow
def test_mypy_finds_wrong_uses_and_accepts_right_ones(tmp_path: Path) -> None:
    out, err, _ = api.run(["--strict", "--config-file=", f"--cache-dir={tmp_path}", str(USES)])
    found = {int(number) for number in re.findall(r"typed_uses\.py:(\d+): error", out)}
    assert found == wrong_lines(), out + err


@pytest.mark.slow
def test_pyright_finds_wrong_uses_and_accepts_right_ones(tmp_path: Path) -> None:
    """basedpyright is pyright with Node.js as a wheel; the package `pyright` would fetch Node.js when it runs."""
    settings = {"include": [str(USES)], "extraPaths": [str(CLONE)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    program = Path(sys.executable).with_name("basedpyright")
    command = [program, "--project", tmp_path, "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    told = json.loads(done.stdout)["generalDiagnostics"]
    found = {each["range"]["start"]["line"] + 1 for each in told if each["severity"] == "error"}
    assert found == wrong_lines(), done.stdout + done.stderr


def test_the_types_of_settings_are_made_from_their_declarations(tmp_path: Path) -> None:
    made = tmp_path / "setting_types.py"
    made.write_text(setting_types.formatted())
    assert (CLONE / "ledgermq" / "client" / "setting_types.py").read_text() == made.read_text(), "run `make pages`"

"""Hypothesis against every surface, in a child process; and the proof that a failure is seen, and
made small.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fuzz.surfaces import all_surfaces

EXAMPLES = 40
"""For each surface."""
ROOT = Path(__file__).parents[2]


def draw(folder: Path, examples: int, names: Sequence[str], seed: int = 1) -> tuple[int, list[dict[str, str]], bytes]:
    """Exit status of the child, the failures that it told, and the last input that it tried."""
    present = folder / "input"
    command = [sys.executable, "-m", "tests.fuzz.drawn", str(seed), str(present), str(examples), *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=900, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], present.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_no_surface_gives_way_to_what_hypothesis_draws(tmp_path: Path) -> None:
    status, failures, last = draw(tmp_path, EXAMPLES, list(all_surfaces()))
    assert not failures
    assert status == 0, f"the child died, the last input was {last.hex()}"


def test_a_failure_is_seen_and_made_small(tmp_path: Path) -> None:
    status, [failure], _ = draw(tmp_path, 200, ["broken-raise"])
    assert status == 0
    assert bytes.fromhex(failure["input"]) == b"raise"
    assert failure["what"].startswith("KeyError")


def test_a_crash_is_seen_with_its_input(tmp_path: Path) -> None:
    status, _, last = draw(tmp_path, 200, ["broken-crash"])
    assert status == -11
    assert last == b"crash"

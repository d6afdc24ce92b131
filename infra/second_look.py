"""Run pytest, and in CI run the few tests that failed once more, alone (`make test-fast` and its like).

    python -m infra.second_look -m "not slow" tests

A test that fails by chance stops everybody's work, and says nothing about the change that it stops. A fault of the
product that shows now and then must not get lost either. So:

    one to three tests failed       they run again, one after the other, nothing beside them. If all pass, the
                                    suite has passed, and their names stand at its end and in the summary of CI.
                                    Each is a fault to mend: of the test, or of the product
    more failed, or pytest broke    the suite has failed; nothing runs again
    outside of CI                   nothing runs again: who works on a change sees the failure at once

CI is where the variable `CI` is set, as CI services do. `FAILED_BY_CHANCE` may name a file; the tests are appended
to it, a line each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

AGAIN_MAX = 3


def failed_in(cache: Path) -> list[str]:
    """Return the tests that pytest remembers as failed in its folder of the cache; none where it could not write it."""
    try:
        return sorted(json.loads((cache / "v/cache/lastfailed").read_text(encoding="utf-8")))
    except (FileNotFoundError, json.JSONDecodeError):  # a full disk leaves an empty file; the status says the rest
        return []


def run(arguments: Sequence[str], *, again_max: int) -> tuple[int, list[str]]:
    """Run the suite; return its exit status and the tests that passed only when they ran again."""
    with tempfile.TemporaryDirectory(prefix="pytest-cache-") as cache:
        pytest_command = (sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}")
        status = subprocess.run((*pytest_command, *arguments), check=False).returncode
        failed = failed_in(Path(cache))
        if status != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= again_max:
            return status, []
        print(f"=== once more, alone: {' '.join(failed)}", flush=True)
        status = subprocess.run((*pytest_command, "-n", "0", *failed), check=False).returncode
    return status, failed if status == 0 else []


def main(arguments: Sequence[str]) -> int:
    status, by_chance = run(arguments, again_max=AGAIN_MAX if os.environ.get("CI") else 0)
    for test in by_chance:
        print(f"failed by chance, to be mended: {test}")
    if by_chance and (notes := os.environ.get("FAILED_BY_CHANCE")):
        with open(notes, "a", encoding="utf-8") as file:
            file.writelines(f"{test}\n" for test in by_chance)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

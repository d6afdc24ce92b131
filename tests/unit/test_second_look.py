"""CI looks once more at the few tests that failed, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
CLONE = Path(__file__).resolve().parents[2]
BY_CHANCE = """
import pathlib, pytest
seen = pathlib.Path(__file__).with_suffix(".seen")

@pytest.mark.parametrize("number", range({count}))
def test_by_chance(number):
    mark = seen.with_suffix(f".seen{{number}}")
    first = not mark.exists()
    mark.touch()
    assert not first
"""
ALWAYS = "def test_always(): assert 1 == 2\n"
NO_SPACE = """
import pytest

@pytest.fixture(autouse=True, scope="session")
def the_disk_is_full_when_pytest_writes_its_cache(request):
    yield
    cache = request.config.cache
    folder = cache.mkdir("of this test").parents[1] / "v"

    def write_nothing(key, value):
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_text("")

    cache.set = write_nothing

def test_by_chance(): assert 1 == 2
"""


def look(folder: Path, tests: str, *, ci: bool) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / "test_it.py").write_text(tests, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    environment |= {"FAILED_BY_CHANCE": str(folder / "notes"), "PYTHONPATH": str(CLONE)} | (
        {"CI": "true"} if ci else {}
    )
    command = (sys.executable, "-m", "infra.second_look", "-q", "test_it.py")
    return subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)


def test_what_passes_the_second_time_is_named(tmp_path: Path) -> None:
    done = look(tmp_path, BY_CHANCE.format(count=1), ci=True)
    assert done.returncode == 0, done.stdout
    assert "failed by chance, to be mended: test_it.py::test_by_chance[0]" in done.stdout
    assert (tmp_path / "notes").read_text(encoding="utf-8") == "test_it.py::test_by_chance[0]\n"


@pytest.mark.parametrize(
    ("tests", "ci"),
    [
        pytest.param(BY_CHANCE.format(count=1), False, id="outside of CI"),
        pytest.param(BY_CHANCE.format(count=4), True, id="too many"),
        pytest.param(BY_CHANCE.format(count=1) + ALWAYS, True, id="one that always fails"),
        pytest.param("import no_such_module\n", True, id="not even collected"),
        pytest.param(NO_SPACE, True, id="a full disk"),
    ],
)
def test_else_it_has_failed(tmp_path: Path, tests: str, ci: bool) -> None:
    done = look(tmp_path, tests, ci=ci)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    assert "by chance, to be mended" not in done.stdout
    assert not (tmp_path / "notes").exists()

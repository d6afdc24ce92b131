"""The console's files are what its sources build, stay within their budgets, and name no other host."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]
SOURCES, BUILT = CLONE / "console", CLONE / "ledgermq_gateway/static"
BUDGET_BYTES = {"app.js": 60 * 1024, "app.css": 10 * 1024}
"""After gzip."""


def test_the_files_stay_within_their_budgets() -> None:
    for name, most in BUDGET_BYTES.items():
        assert len(gzip.compress((BUILT / name).read_bytes(), mtime=0)) <= most, name
    assert sum(path.stat().st_size for path in BUILT.iterdir()) <= 200 * 1024


def test_nothing_comes_from_another_host_and_nothing_becomes_markup() -> None:
    page, script, style = ((BUILT / name).read_text("ascii") for name in ("index.html", "app.js", "app.css"))
    for text in (page, style):
        assert "http://" not in text
        assert "https://" not in text
        assert "@import" not in text
    for path in SOURCES.glob("src/**/*.ts*"):
        source = path.read_text("utf-8")
        for forbidden in (
            "dangerouslySetInnerHTML",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "eval(",
            "document.write",
        ):
            assert forbidden not in source, f"{path.name}: {forbidden}"
    assert "eval(" not in script
    assert "new Function" not in script


@pytest.mark.console
def test_the_sources_build_these_files_byte_for_byte(tmp_path: Path) -> None:
    sources = tmp_path / "console"
    shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("node_modules"))
    for command in (
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        ["npx", "tsc", "-p", "."],
        ["node", "test.mjs"],
        ["node", "build.mjs", str(tmp_path / "built")],
    ):
        done = subprocess.run(command, cwd=sources, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    names = sorted(path.name for path in BUILT.iterdir())
    assert sorted(path.name for path in (tmp_path / "built").iterdir()) == names
    for name in names:
        assert (tmp_path / "built" / name).read_bytes() == (BUILT / name).read_bytes(), f"{name}: run make console"

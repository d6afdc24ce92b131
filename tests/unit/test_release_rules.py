"""What goes into a release is pinned, runs no scripts of others while it is built, and nothing here publishes it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LOCK = REPOSITORY / "console/package-lock.json"


def text_of(pattern: str, *places: str) -> list[str]:
    """Return the lines of the repository that match, in these places."""
    command = ["git", "grep", "--no-color", "-hE", pattern, "--", *places]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


BUILDING = ("Makefile", ".ci", "infra", "*Dockerfile*", "console")


def test_no_package_of_the_console_runs_a_script_while_it_is_installed() -> None:
    commands = text_of(r"\bnpm +(ci|i|install)\b", *BUILDING)
    assert commands
    assert all("npm ci" in line and "--ignore-scripts" in line for line in commands), commands


def test_every_package_of_the_console_is_pinned_by_its_contents() -> None:
    packages = {name: each for name, each in json.loads(LOCK.read_text())["packages"].items() if name}
    assert packages
    loose = [name for name, each in packages.items() if not re.match(r"sha512-", each.get("integrity", ""))]
    assert not loose, loose
    assert all(re.fullmatch(r"\d+\.\d+\.\d+\S*", each["version"]) for each in packages.values())
    given = json.loads((REPOSITORY / "console/package.json").read_text())
    assert not {"preinstall", "install", "postinstall", "prepare"} & given.get("scripts", {}).keys()


def test_nothing_here_publishes_or_reads_a_secret_of_an_index() -> None:
    """A person publishes, with what `make release-check` has built twice: no job that builds has a token."""
    assert not text_of(r"twine +upload|uv +publish|npm +publish|docker +push|TWINE_PASSWORD|PYPI_TOKEN", *BUILDING)

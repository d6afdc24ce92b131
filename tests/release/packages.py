"""Environments as users make them: an interpreter, a wheel and its extras, and nothing of this clone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CLONE = Path(__file__).resolve().parents[2]
UV = str(Path(sys.executable).parent / "uv")


def _configured(name: str) -> str:
    """Return what pip's files and variables say, which uv does not read (as infra/setup.sh does)."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=120, check=False
    ).stdout
    found = [line.partition("=")[2].strip("'") for line in listed.splitlines() if f".{name}=" in line]
    return found[-1] if found else ""


def environment() -> dict[str, str]:
    """Return the variables of a user: nothing of this run's Python, and where packages come from."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    if index := _configured("index-url"):
        kept.setdefault("UV_DEFAULT_INDEX", index)
    if cert := _configured("cert"):
        kept.setdefault("SSL_CERT_FILE", cert)
    return kept


def run(command: Sequence[str], cwd: Path, seconds: float = 600, **variables: str) -> str:
    """Run a command as a user does; return what it prints. Raises AssertionError with all that a failed one printed."""
    done = subprocess.run(
        command, cwd=cwd, env=environment() | variables, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source: Path, folder: Path) -> None:
    """Build the source distribution of a checkout, and the wheel from that, into a folder."""
    run([UV, "build", "--quiet", "--out-dir", str(folder), str(source)], source)


def make_environment(home: Path, interpreter: str, *requirements: str) -> None:
    """Make a virtual environment and install into it."""
    run([UV, "venv", "--quiet", "--python", interpreter, str(home)], home.parent)
    pip(home, "install", "--quiet", *requirements)


def pip(home: Path, command: str, *arguments: str) -> None:
    run([UV, "pip", command, "--python", str(home), *arguments], home.parent, 1200)

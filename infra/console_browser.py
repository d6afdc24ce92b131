"""Provide what the console's tests need beside the tests: Chromium of Debian, Playwright, axe. Prints the variables.

    python -m infra.console_browser     install what is missing; print PYTHONPATH and CONSOLE_AXE for `env`

Playwright goes into .cache/, because it is large, and only these tests need it. Its own browsers are not used.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from infra import debian

CLONE = Path(__file__).resolve().parent.parent
PLAYWRIGHT = "playwright==1.65.2"
CHROMIUM = Path("/usr/bin/chromium")
SECONDS_MAX = 600


def main() -> None:
    """Install what is missing, and print the variables of the tests' environment."""
    print(" ".join(f"{name}={value}" for name, value in provided().items()))


def provided() -> dict[str, str]:
    """Install what is missing, and return the variables of the tests' environment. Exits where that is not possible."""
    if not CHROMIUM.exists():
        debian.install("chromium")
    if not CHROMIUM.exists():
        sys.exit(f"there is no {CHROMIUM}, and it could not be installed: install Debian's package chromium")
    packages = debian.CACHE / PLAYWRIGHT
    if not packages.exists():
        half = debian.CACHE / f"{PLAYWRIGHT}.half"
        shutil.rmtree(half, ignore_errors=True)
        _run([sys.executable, "-m", "pip", "install", "-q", "--target", str(half), PLAYWRIGHT], CLONE)
        half.rename(packages)
    modules = debian.CACHE / "console"
    modules.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(CLONE / "console" / name, modules / name)
    _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], modules)
    return {"PYTHONPATH": str(packages), "CONSOLE_AXE": f"{modules}/node_modules/axe-core/axe.min.js"}


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, stdout=sys.stderr, check=True, timeout=SECONDS_MAX)


if __name__ == "__main__":
    main()

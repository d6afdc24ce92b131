"""Install the locked dependencies and run the client's unit tests on each Python that LedgerMQ supports.

    python -m infra.pythons [VERSION …]    all of SUPPORTED by default

An interpreter is looked for on PATH, in pyenv's folder and where uv keeps its own; PYTHONS adds
folders. One that is missing is skipped, and the last lines say so. Exit status: 1 if a Python that
is there fails, or if there is none at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
ENVIRONMENTS = CLONE / ".cache" / "pythons"
IMPORTS = "import ledgermq, ledgermq.sync, ledgermq.cli.main, ledgermq_broker.embedded, ledgermq_tools.broker.commands"
TESTS = ("tests/unit/client", "tests/unit/protocol", "tests/unit/runtime")
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def candidates(version: str) -> Iterator[Path]:
    """Yield the places where an interpreter of this version may be, the likeliest first."""
    name = f"python{version}"
    for folder in (*os.environ.get("PYTHONS", "").split(os.pathsep), *os.environ.get("PATH", "").split(os.pathsep)):
        if folder:
            yield Path(folder) / name
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv")
    for installed in (pyenv / "versions", home / ".local" / "share" / "uv" / "python"):
        yield from sorted(installed.glob(f"*{version}.*/bin/{name}"), reverse=True)


def find(version: str) -> Path | None:
    """Return an interpreter of this version that runs (a shim of pyenv need not), or None."""
    for path in candidates(version):
        if path.exists():
            done = subprocess.run([path, "-c", _VERSION], capture_output=True, text=True, timeout=60, check=False)
            if done.returncode == 0 and done.stdout.strip() == version:
                return path
    return None


def check(version: str, interpreter: Path, arguments: Sequence[str]) -> None:
    """Install everything for one Python, import it, and run the tests. Raises CalledProcessError."""
    environment = ENVIRONMENTS / version
    python = environment / "bin" / "python"
    if not python.exists():
        _run(interpreter, "-m", "venv", "--clear", str(environment))
    _run("bash", "infra/setup.sh", str(environment))
    _run(python, "-c", IMPORTS)
    _run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not spark", *arguments, *TESTS)


def _run(*command: str | Path) -> None:
    subprocess.run(command, cwd=CLONE, check=True)


def main(versions: Sequence[str]) -> int:
    results: dict[str, str] = {}
    for version in versions or SUPPORTED:
        interpreter = find(version)
        if interpreter is None:
            results[version] = "skipped: there is no such interpreter on PATH, in pyenv's folder or in uv's"
            continue
        print(f"=== Python {version}: {interpreter}", flush=True)
        try:
            check(version, interpreter, ("-n", os.environ.get("WORKERS", "2")))
        except subprocess.CalledProcessError as error:
            results[version] = f"FAILED: {error}"
        else:
            results[version] = f"passed ({interpreter})"
        shutil.rmtree(ENVIRONMENTS / version, ignore_errors=True)
    print("\n".join(f"Python {version}: {result}" for version, result in results.items()))
    failed = any(result.startswith("FAILED") for result in results.values())
    return int(failed or not any(result.startswith("passed") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

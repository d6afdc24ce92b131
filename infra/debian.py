"""Provide Debian's packages for servers that tests and benchmarks need: installed as root, or
unpacked into .cache/.

Both need apt; elsewhere nothing happens.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache"
SECONDS_MAX = 600


def install(package: str) -> None:
    """Install a package. Callers look again for what they need to see whether it helped."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return
    print(f"Installing {package} with apt-get …", file=sys.stderr)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package],
    ):
        subprocess.run(command, env=environment, stdout=sys.stderr, check=False, timeout=SECONDS_MAX)


def unpacked(package: str) -> Path | None:
    """Return the folder with the files of `package` and of all its missing dependencies, as if it
    were /.

    Nothing on the machine changes, no service starts, and no script of a package runs. None if the
    package is not available.
    """
    folder = CACHE / package
    done = folder / ".complete"
    if done.exists():
        return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    if os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], stdout=sys.stderr, check=False, timeout=SECONDS_MAX)
    planned = _run("apt-get", "install", "--simulate", "--reinstall", "--no-install-recommends", package)
    names = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
    if not names:
        return None
    print(f"Unpacking {', '.join(names)} into {folder} …", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="ledgermq-debian-") as archives:
        _run("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *names, folder=archives)
        found = list(Path(archives).glob("*.deb"))
        if len(found) < len(names):
            return None
        folder.mkdir(parents=True, exist_ok=True)
        for archive in found:
            _run("dpkg-deb", "--extract", str(archive), str(folder))
    done.touch()
    return folder


def libraries(folder: Path) -> str:
    """Return LD_LIBRARY_PATH for programs of an unpacked package."""
    return ":".join(str(found) for place in ("lib", "usr/lib") for found in (folder / place).glob("*-linux-*"))


def _run(*command: str, folder: str | None = None) -> str:
    """Run a command and return its output; a failure shows afterwards as missing files."""
    return subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False, timeout=SECONDS_MAX
    ).stdout

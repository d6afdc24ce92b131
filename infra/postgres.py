"""Run a real PostgreSQL for tests: found, or installed with apt on Debian as root; started on a
free port in a temporary folder.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra import debian
from infra.ports import free_port

START_SECONDS_MAX = 60
USER = "ledgermq"


def programs() -> Path | None:
    """Return the folder of `initdb` and `postgres`, newest version first."""
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True
    )
    if found := shutil.which("postgres"):
        folders.append(Path(found).parent)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


def install() -> Path:
    """Install it. Exits with one clear sentence if it is not available."""
    if (folder := programs()) is not None:
        return folder
    debian.install("postgresql")
    if (folder := programs()) is None:
        sys.exit(
            "There is no PostgreSQL server here (initdb, postgres), and it can only be installed as root on Debian."
        )
    return folder


@contextmanager
def running() -> Iterator[str]:
    """Run it; yield an SQLAlchemy URL of an empty database; everything is removed afterwards."""
    folder = install()
    owner = _owner()
    with tempfile.TemporaryDirectory(prefix="ledgermq-postgres-") as name:
        home = Path(name)
        if owner is not None:
            shutil.chown(home, owner)
        data = home / "data"
        command = [
            str(folder / "initdb"),
            "-D",
            str(data),
            "-U",
            USER,
            "--auth=trust",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
        ]
        subprocess.run(command, user=owner, cwd=home, capture_output=True, check=True, timeout=120)
        port = free_port()
        server = [
            str(folder / "postgres"),
            "-D",
            str(data),
            "-p",
            str(port),
            "-c",
            "listen_addresses=127.0.0.1",
            "-k",
            str(home),
        ]
        log = home / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(server, user=owner, cwd=home, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_ready(folder, process, port, log)
            yield f"postgresql+psycopg://{USER}@127.0.0.1:{port}/postgres"
        finally:
            process.terminate()
            process.wait(timeout=30)


def _owner() -> str | None:
    """Return the user to run as, because PostgreSQL refuses to run as root; None: the current user."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


def _wait_ready(folder: Path, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    probe = [str(folder / "pg_isready"), "-h", "127.0.0.1", "-p", str(port), "-q"]
    while process.poll() is None and time.monotonic() < until:
        if subprocess.run(probe, check=False).returncode == 0:
            return
        time.sleep(0.1)
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text(errors='replace')[-4000:]}")

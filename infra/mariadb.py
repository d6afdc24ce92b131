"""Run a real MariaDB for tests: find or fetch its server (`install`), and run it with data of its own (`running`).

`python infra/mariadb.py` prints the program. That of the machine is taken if there is one. Otherwise Debian's package
is unpacked into .cache/, not installed: the package's scripts would start a server on the usual port. The server runs
without users and rights (--skip-grant-tables), which need system tables that a script of the package makes.
"""

from __future__ import annotations

import os
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

VARIABLE = "LEDGERMQ_MARIADB"
"""The environment variable with the path of the program mariadbd."""
PACKAGE = "mariadb-server-core"
PLACE = Path("usr/sbin/mariadbd")
"""Where Debian has the program, below / or the folder of an unpacked package."""
DATABASE = "tests"
START_SECONDS_MAX = 60.0
END_SECONDS_MAX = 30.0


def install() -> Path:
    """Return the program. Exits with one clear sentence if it is not available."""
    if given := os.environ.get(VARIABLE) or shutil.which("mariadbd"):
        return Path(given)
    unpacked = debian.unpacked(PACKAGE)
    if unpacked is None or not (unpacked / PLACE).exists():
        sys.exit(
            f"There is no MariaDB here, and Debian's package cannot be had: set {VARIABLE} to the program mariadbd."
        )
    return unpacked / PLACE


@contextmanager
def running() -> Iterator[str]:
    """Run a server on a free port with an empty database, and yield an SQLAlchemy URL of it; everything is removed
    afterwards.
    """
    program, port = install(), free_port()
    with tempfile.TemporaryDirectory(prefix="ledgermq-mariadb-") as home:
        (Path(home) / "data" / DATABASE).mkdir(parents=True)  # a folder is a database
        log = Path(home) / "log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                _command(program, Path(home), port),
                env=_environment(program),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait(process, log)
            yield f"mysql+pymysql://root@127.0.0.1:{port}/{DATABASE}"
        finally:
            process.kill()
            process.wait(END_SECONDS_MAX)


def _command(program: Path, home: Path, port: int) -> list[str]:
    shared = _root(program) / "usr/share/mysql"
    settings = {
        "datadir": home / "data",
        "tmpdir": home,
        "socket": home / "socket",
        "port": port,
        "bind-address": "127.0.0.1",
        "lc-messages-dir": shared,
        "character-sets-dir": shared / "charsets",
        "plugin-dir": _root(program) / "usr/lib/mysql/plugin",
    }
    user = ["--user=root"] if os.geteuid() == 0 else []
    options = [f"--{name}={value}" for name, value in settings.items()]
    return [str(program), "--no-defaults", "--skip-grant-tables", "--skip-networking=0", *user, *options]


def _wait(process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < until:
        if b"ready for connections" in log.read_bytes():
            return
        time.sleep(0.05)
    raise RuntimeError(f"MariaDB did not start:\n{log.read_text(errors='replace')[-4000:]}")


def _root(program: Path) -> Path:
    """Return / or the folder of the unpacked package."""
    return program.parents[len(PLACE.parts) - 1] if program.parts[-len(PLACE.parts) :] == PLACE.parts else Path("/")


def _environment(program: Path) -> dict[str, str]:
    """Programs of an unpacked package find their libraries beside them."""
    root = _root(program)
    return os.environ | ({"LD_LIBRARY_PATH": debian.libraries(root)} if root != Path("/") else {})


if __name__ == "__main__":
    print(install())

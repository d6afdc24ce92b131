"""Run a real MariaDB for tests: find or fetch its server (`install`), start, kill and restart it
with its own data (`running`).

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
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class MariaDb:
    """A server with an empty database on 127.0.0.1. Its port stays the same over restarts."""

    program: Path
    home: Path
    port: int
    options: tuple[str, ...] = ()
    """Beside those that tests need."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """An SQLAlchemy URL of its database."""
        return self.address.replace("mysql:", "mysql+pymysql:") + f"/{DATABASE}"

    @property
    def address(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self.home / "data"

    def start(self) -> None:
        """Start it; return when it takes connections."""
        log = self.home / "log"
        begin = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(),
                env=_environment(self.program),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until = time.monotonic() + START_SECONDS_MAX
        while self._process.poll() is None and time.monotonic() < until:
            if b"ready for connections" in log.read_bytes()[begin:]:
                return
            time.sleep(0.05)
        raise RuntimeError(f"MariaDB did not start:\n{log.read_text(errors='replace')[-4000:]}")

    def stop(self) -> None:
        """End it in good order. Only then a new server has written its first pages, without which it cannot recover."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(END_SECONDS_MAX)

    def kill(self) -> None:
        """End it with SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_SECONDS_MAX)

    def _command(self) -> list[str]:
        shared = _root(self.program) / "usr/share/mysql"
        settings = {
            "datadir": self.data,
            "tmpdir": self.home,
            "socket": self.home / "socket",
            "port": self.port,
            "bind-address": "127.0.0.1",
            "lc-messages-dir": shared,
            "character-sets-dir": shared / "charsets",
            "plugin-dir": _root(self.program) / "usr/lib/mysql/plugin",
        }
        user = ["--user=root"] if os.geteuid() == 0 else []
        options = [f"--{name}={value}" for name, value in settings.items()]
        needed = ("--no-defaults", "--skip-grant-tables", "--skip-networking=0")
        return [str(self.program), *needed, *user, *options, *self.options]


@contextmanager
def running(*options: str) -> Iterator[MariaDb]:
    """Run a server on a free port; everything is removed afterwards."""
    program, port = install(), free_port()
    with tempfile.TemporaryDirectory(prefix="ledgermq-mariadb-") as home:
        server = MariaDb(program, Path(home), port, options)
        (server.data / DATABASE).mkdir(parents=True)  # a folder is a database
        try:
            server.start()
            yield server
        finally:
            server.kill()


def _root(program: Path) -> Path:
    """Return / or the folder of the unpacked package."""
    return program.parents[len(PLACE.parts) - 1] if program.parts[-len(PLACE.parts) :] == PLACE.parts else Path("/")


def _environment(program: Path) -> dict[str, str]:
    """Programs of an unpacked package find their libraries beside them."""
    root = _root(program)
    return os.environ | ({"LD_LIBRARY_PATH": debian.libraries(root)} if root != Path("/") else {})


if __name__ == "__main__":
    print(install())

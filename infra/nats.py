"""A real NATS server for benchmarks: NATS_SERVER, PATH or .cache/bin/, else `go install` builds it (a minute) and .cache/bin/ keeps it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bin"
VERSION = "v2.15.2"
BUILD_SECONDS_MAX = 600


def installed() -> Path | None:
    if found := os.environ.get("NATS_SERVER") or shutil.which("nats-server"):
        return Path(found)
    return CACHE / "nats-server" if (CACHE / "nats-server").exists() else None


def install() -> Path:
    """The binary, built if there is none yet. Exits with one clear sentence when it cannot be had."""
    if (binary := installed()) is not None:
        return binary
    if shutil.which("go") is None:
        sys.exit("There is no nats-server binary, and no Go toolchain on PATH to build one.")
    print("Building nats-server with `go install` (a minute, once) …", file=sys.stderr)
    CACHE.mkdir(parents=True, exist_ok=True)
    command = ["go", "install", f"github.com/nats-io/nats-server/v2@{VERSION}"]
    done = subprocess.run(command, env=os.environ | {"GOBIN": str(CACHE)}, timeout=BUILD_SECONDS_MAX, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        sys.exit("`go install` could not build nats-server, see above.")
    return CACHE / "nats-server"


if __name__ == "__main__":
    print(install())

"""Provide servers written in Go: found on the machine, otherwise built once by `go install` and
kept in .cache/bin/.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bin"
BUILD_SECONDS_MAX = 1200


@dataclass(frozen=True, slots=True)
class GoBinary:
    """`variable`: the environment variable with its path.

    `module`: with its version, as `go install` takes it. `minutes`: time to build it.
    `is_on_path`: whether a program of this name on PATH is this one.
    """

    name: str
    variable: str
    module: str
    minutes: int
    is_on_path: bool = True

    def installed(self) -> Path | None:
        if found := os.environ.get(self.variable) or (self.is_on_path and shutil.which(self.name)):
            return Path(found)
        return CACHE / self.name if (CACHE / self.name).exists() else None

    def install(self) -> Path:
        """Return the binary, built if there is none yet.

        Exits with one clear sentence if it is not available.
        """
        if (binary := self.installed()) is not None:
            return binary
        if shutil.which("go") is None:
            sys.exit(f"There is no {self.name} binary, and no Go toolchain on PATH to build one.")
        print(f"Building {self.name} with `go install` (once, {self.minutes} min or so) …", file=sys.stderr)
        CACHE.mkdir(parents=True, exist_ok=True)
        command, environment = ["go", "install", self.module], os.environ | {"GOBIN": str(CACHE)}
        if (
            subprocess.run(
                command, env=environment, timeout=BUILD_SECONDS_MAX, stdout=sys.stderr, check=False
            ).returncode
            != 0
        ):
            sys.exit(f"`go install` could not build {self.name}, see above.")
        return CACHE / self.name

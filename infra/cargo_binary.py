"""Find servers written in Rust, by an environment variable or on PATH. They are never built here:
that takes longer than whoever needs them would wait.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

VERSION_S_MAX = 30


@dataclass(frozen=True, slots=True)
class CargoBinary:
    """`name`: on PATH. `variable`: the environment variable with its path.

    `version`: how the version begins that is wanted. `crate`: what `cargo install` takes, and
    `program`: what it makes of that. `minutes`: time to build it.
    """

    name: str
    variable: str
    version: str
    crate: str
    program: str
    minutes: int

    def found(self) -> str | None:
        return os.environ.get(self.variable) or shutil.which(self.name)

    def path(self) -> Path:
        """Return the binary. Exits with what to do if there is none, or one of another version."""
        found = self.found()
        if found is None:
            sys.exit(f"there is no {self.name}: {self._how()}")
        try:
            said = subprocess.run(
                [found, "--version"], capture_output=True, text=True, timeout=VERSION_S_MAX, check=False
            ).stdout.strip()
        except OSError as failed:
            sys.exit(f"{found} does not start ({failed.strerror}): {self._how()}")
        if not said.rpartition(" ")[2].startswith(self.version):
            sys.exit(f"{found} is {said or 'of no known version'}, not {self.version}: {self._how()}")
        return Path(found)

    def _how(self) -> str:
        return (
            f"build it with `cargo install --locked {self.crate} --root FOLDER`"
            f" ({self.minutes} min or so on two cores), and set {self.variable} to FOLDER/bin/{self.program}"
        )

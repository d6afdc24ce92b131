"""Provide a real Redis for benchmarks: REDIS_SERVER, or `redis-server` on PATH, otherwise Debian's
package unpacked into .cache/.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from infra import debian


@dataclass(frozen=True)
class Program:
    """`environment`: what its process needs besides this process's environment."""

    path: Path
    environment: dict[str, str]


def install() -> Program:
    """Return the server. Exits with one clear sentence if it is not available."""
    if found := os.environ.get("REDIS_SERVER") or shutil.which("redis-server"):
        return Program(Path(found), {})
    folder = debian.unpacked("redis-server")
    if folder is None or not (folder / "usr/bin/redis-server").exists():
        sys.exit("There is no redis-server on PATH, and Debian's package of it cannot be had here.")
    return Program(folder / "usr/bin/redis-server", {"LD_LIBRARY_PATH": debian.libraries(folder)})


if __name__ == "__main__":
    print(install().path)

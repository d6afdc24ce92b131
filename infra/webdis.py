"""Provide a real Webdis, an HTTP server for Redis, for benchmarks: WEBDIS, or `webdis` on PATH, otherwise Debian's
package unpacked into .cache/.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from infra import debian
from infra.redis import Program


def install() -> Program:
    """Return the server. Exits with one clear sentence if it is not available."""
    if found := os.environ.get("WEBDIS") or shutil.which("webdis"):
        return Program(Path(found), {})
    folder = debian.unpacked("webdis")
    if folder is None or not (folder / "usr/bin/webdis").exists():
        sys.exit("There is no webdis on PATH, and Debian's package of it cannot be had here.")
    return Program(folder / "usr/bin/webdis", {"LD_LIBRARY_PATH": debian.libraries(folder)})


if __name__ == "__main__":
    print(install().path)

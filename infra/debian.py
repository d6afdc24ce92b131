"""Debian's packages, for servers that tests need: installed as root, where there is apt; elsewhere nothing happens."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

SECONDS_MAX = 600


def install(package: str) -> None:
    """Whether it helped the caller sees by looking again for what it needs."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return
    print(f"Installing {package} with apt-get …", file=sys.stderr)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]):
        subprocess.run(command, env=environment, stdout=sys.stderr, check=False, timeout=SECONDS_MAX)

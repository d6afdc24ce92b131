"""Run the process of an emulator of a cloud's store."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS_MAX = 60


def answers(url: str) -> bool:
    """Return whether a server answers at all, with whatever status."""
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except urllib.error.HTTPError:
        return True
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def served(name: str, command: list[str], environment: dict[str, str], url: str, folder: Path) -> Iterator[None]:
    """Run an emulator's process until the block ends. `url` answers once it is ready."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + START_SECONDS_MAX
        while not answers(url):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{name} did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)

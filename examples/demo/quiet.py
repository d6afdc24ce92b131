"""Spark's own chatter goes to a log file: it says much that a newcomer can do nothing about, before any setting could stop it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """This process's and its children's, as long as the block runs."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)

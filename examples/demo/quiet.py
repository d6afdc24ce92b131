"""Spark's own chatter goes to a log file: it says much that a newcomer can do nothing about, before
any setting could stop it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LINES_SHOWN = 15


@contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """This process's and its children's, as long as the block runs; its last lines are shown after
    all when the block fails.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except Exception:
        os.write(kept, b"".join(log.read_bytes().splitlines(keepends=True)[-LINES_SHOWN:]))
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)

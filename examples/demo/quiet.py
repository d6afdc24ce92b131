"""Send Spark's own output to a log file, because a newcomer can act on little of it, and no setting
stops it early enough.
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
    """Redirect the stderr of this process and its children during the block; if the block fails,
    the last lines are shown.
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

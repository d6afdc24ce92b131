"""What happened, as text: the last lines for a reader, a running digest of all of them to compare
two runs.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque

LINES_KEPT = 400


class Trace:
    def __init__(self, lines_kept: int | None = LINES_KEPT) -> None:
        self.lines: deque[str] = deque(maxlen=lines_kept)
        self.count = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, at_s: float, who: str, what: str) -> None:
        line = f"{at_s:12.6f} {who:<8} {what}"
        self.lines.append(line)
        self.count += 1
        self._digest.update(line.encode() + b"\n")

    def digest(self) -> str:
        return self._digest.hexdigest()


class Coverage(Counter[str]):
    """How often something worth reaching was reached; names are sentences."""

    def saw(self, what: str, times: int = 1) -> None:
        self[what] += times

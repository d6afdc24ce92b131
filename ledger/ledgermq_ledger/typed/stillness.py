"""End a child process that stands still: a decoder that waits for something that never comes uses no processor time, so
the bound of that time does not end it.

What counts is how often this process looks and sees no progress, not how much time goes by: after a pause of the
machine or of the program there is one look, and no fault of a value.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

LOOK_EVERY_S = 1.0
LOOKS_MAX = 20
"""Without any processor time between them. A process that is starved by others gets some now and then."""
LOOKS_UNSEEN_MAX = 600
"""In all, where the system does not say what a process has used: far more than the processor time of a request."""


@dataclass(slots=True)
class Looks:
    """Counts looks at a process. Pure."""

    used: float | None = None
    still: int = 0

    def is_still(self, used: float | None) -> bool:
        """Note what processor time the process has used, None if the system does not say it; return True if it is to be
        ended.
        """
        if used is not None and used != self.used:
            self.used, self.still = used, 0
            return False
        self.still += 1
        return self.still >= (LOOKS_MAX if used is not None else LOOKS_UNSEEN_MAX)


def processor_time(pid: int) -> float | None:
    """Return the processor time that a process has used, in the system's unit; None if the system does not say it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return float(fields[11]) + float(fields[12])


class Watch:
    """Within this block a process that stands still is ended, by calling `end` once. `ended`: it was."""

    def __init__(self, pid: int, end: Callable[[], None], every_s: float = LOOK_EVERY_S) -> None:
        self.ended = False
        self._pid, self._end, self._every_s = pid, end, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledgermq-decoder-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        looks = Looks()
        while not self._over.wait(self._every_s):
            if looks.is_still(processor_time(self._pid)):
                self.ended = True
                self._end()
                return

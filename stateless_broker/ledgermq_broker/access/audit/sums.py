"""Bound the lines of the audit log: each source has some a minute, and the others are summed.

    per source        `LINES_PER_SOURCE` lines a minute
    all sources       `LINES_MAX` lines a minute
    at the minute's   one line for each source that had more, for `SUMS_MAX` sources; the others are summed
    end               as one

So the log grows by some kilobytes a second at most, however many calls are refused, and every refusal
is counted in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

MINUTE_S = 60.0
LINES_PER_SOURCE = 20
LINES_MAX = 600
SUMS_MAX = 100
OTHERS = "other sources"


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a call. `change`: an allowed change, which always has a line."""

    principal: str
    operation: str
    allowed: bool
    change: bool
    name: str
    why: str


@dataclass(slots=True)
class Sum:
    """Decisions of one source in one minute. `lines`: that were written; the others are counted."""

    last: Decision
    lines: int = 0
    refused: int = 0
    allowed: int = 0


class AuditSums:
    """`write(source, sum)`: called at the end of each minute for each source that had more than its lines.

    Times are those of the running event loop. Each loop begins a new minute.
    """

    def __init__(self, write: Callable[[str, Sum], None]) -> None:
        self._write = write
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lines = 0
        self._sources: dict[str, Sum] = {}

    def may_write(self, source: str, decision: Decision, count: int = 1) -> bool:
        """Return whether a decision gets a line; otherwise it is counted. `count`: of names that it is about."""
        loop = _running_loop()
        if loop is None:
            return True
        if loop is not self._loop:
            self._begin(loop)
        found = self._sources.get(source)
        if found is None:
            key = source if len(self._sources) < SUMS_MAX else OTHERS
            found = self._sources.setdefault(key, Sum(decision))
        if found.lines < LINES_PER_SOURCE and self._lines < LINES_MAX:
            found.lines += 1
            self._lines += 1
            return True
        found.last = decision
        if decision.allowed:
            found.allowed += count
        else:
            found.refused += count
        return False

    def end_minute(self) -> None:
        """Write the sums, and begin the next minute."""
        found, self._sources = self._sources, {}
        self._loop, self._lines = None, 0
        for source, sums in found.items():
            if sums.refused or sums.allowed:
                self._write(source, sums)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines = 0
        self._sources = {}
        loop.call_later(MINUTE_S, self._ended, loop)

    def _ended(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is self._loop:
            self.end_minute()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

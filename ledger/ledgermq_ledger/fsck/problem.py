"""Hold the findings of a check of a root, as values.

NOTE      normal, and worth knowing: a void segment, a slot after a gap, the check could not be repeated on a quiet
          root, what waits to be collected
UNTIDY    left over: nothing refers to it, or its deletion was not finished, and garbage collection should have taken
          it; or it is not ours
DAMAGE    records, or the right to give them out, are lost, doubled or in doubt; or a partition waits for repair
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum

from ledgermq_ledger.root.damage import CollectingDamage

OVERDUE_AFTER_GRACES = 2
"""Objects in use until now are removed after the grace of garbage collection, and by its next pass:
as long again.
"""


class Severity(IntEnum):
    NOTE = 0
    UNTIDY = 1
    DAMAGE = 2


def time_text(ms: int) -> str:
    """Return the clock time, to the minute, rounded up."""
    return f"{datetime.fromtimestamp(-(-ms // 60_000) * 60, UTC):%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """`object_key`: relative to the root. `code`: stable, for programs."""

    severity: Severity
    object_key: str
    code: str
    text: str


class Problems:
    """The findings, one entry for each object and problem, in the order in which they were found.

    `now_ms`: without it every left-over object is overdue. `grace_ms`: that of garbage collection.
    """

    def __init__(self, now_ms: int | None = None, grace_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        self._found: dict[Problem, None] = {}
        self.pinned: set[str] = set()
        """Objects that cuts keep, so they are not left over."""

    @property
    def all(self) -> list[Problem]:
        """Return all problems, the worst first."""
        return sorted(self._found, key=lambda problem: -problem.severity)

    @property
    def worst(self) -> Severity | None:
        return max((problem.severity for problem in self._found), default=None)

    def note(self, object_key: str, code: str, text: str) -> None:
        self._found[Problem(Severity.NOTE, object_key, code, text)] = None

    def untidy(self, object_key: str, code: str, text: str) -> None:
        self._found[Problem(Severity.UNTIDY, object_key, code, text)] = None

    def leftover(self, object_key: str, code: str, text: str, *, put_ms: int, used_ms: int) -> None:
        """Report an object that garbage collection will remove once `put_ms` is old enough: a note
        while it waits, untidy when it should be gone.

        `used_ms`: it may have been in use until then.
        """
        if object_key in self.pinned:
            return
        if self._now_ms is None or self._now_ms - max(put_ms, used_ms) >= OVERDUE_AFTER_GRACES * self._grace_ms:
            self.untidy(object_key, code, f"{text}; `ledgermq gc` removes it")
            return
        free_ms = put_ms + self._grace_ms
        when = "may be removed now" if free_ms <= self._now_ms else f"may be removed from {time_text(free_ms)} on"
        self.note(object_key, code, f"{text}; it waits for garbage collection and {when}")

    def damage(self, object_key: str, code: str, text: str) -> None:
        self._found[Problem(Severity.DAMAGE, object_key, code, text)] = None

    def extend(self, other: Problems) -> None:
        self._found |= other._found

    def collecting(self, object_key: str) -> CollectingDamage:
        """Return a block in which damage and missing objects become problems; `object_key` is for
        errors that name no object.
        """
        return CollectingDamage(object_key, self.damage)

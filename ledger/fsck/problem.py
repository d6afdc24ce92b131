"""What a check of a root found, as values.

NOTE      normal, and worth knowing: a void segment, a slot after a gap, the check could not be repeated on a quiet root
UNTIDY    left over: nothing refers to it, or its deletion was not finished; garbage collection or a person may remove it
DAMAGE    records, or the right to give them out, are lost, doubled or in doubt; or a partition waits for repair
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ledger.damage import CollectingDamage


class Severity(IntEnum):
    NOTE = 0
    UNTIDY = 1
    DAMAGE = 2


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """`object_key`: relative to the root. `code`: stable, for programs."""

    severity: Severity
    object_key: str
    code: str
    text: str


class Problems:
    """One entry an object and problem, in the order in which they were found."""

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}

    @property
    def all(self) -> list[Problem]:
        """The worst first."""
        return sorted(self._found, key=lambda problem: -problem.severity)

    @property
    def worst(self) -> Severity | None:
        return max((problem.severity for problem in self._found), default=None)

    def note(self, object_key: str, code: str, text: str) -> None:
        self._found[Problem(Severity.NOTE, object_key, code, text)] = None

    def untidy(self, object_key: str, code: str, text: str) -> None:
        self._found[Problem(Severity.UNTIDY, object_key, code, text)] = None

    def damage(self, object_key: str, code: str, text: str) -> None:
        self._found[Problem(Severity.DAMAGE, object_key, code, text)] = None

    def extend(self, other: Problems) -> None:
        self._found |= other._found

    def collecting(self, object_key: str) -> CollectingDamage:
        """A block in which damage and missing objects become problems, of `object_key` where the error names none."""
        return CollectingDamage(object_key, self.damage)

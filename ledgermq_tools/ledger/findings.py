"""Damage as a value: whatever the store's checks raise becomes a Finding that names the object, and
the inspection goes on.
"""

from __future__ import annotations

from ledger.root.damage import CollectingDamage
from ledgermq.cli.report import Finding


class Findings:
    """A list that keeps one finding an object and problem."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def add(self, object_key: str, code: str, problem: str) -> None:
        finding = Finding(object_key, code, problem)
        if finding not in self.all:
            self.all.append(finding)

    def collecting(self, object_key: str) -> CollectingDamage:
        """A block inside of which damage and missing objects become findings; `object_key` where
        the error names none.
        """
        return CollectingDamage(object_key, self.add)

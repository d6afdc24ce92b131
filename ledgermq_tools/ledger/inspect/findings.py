"""Turn damage into values: an error of the store's checks becomes a Finding that names the object,
and the inspection continues.
"""

from __future__ import annotations

from ledgermq.cli.output.report import Finding
from ledgermq_ledger.fsck.problem import Problems, Severity
from ledgermq_ledger.root.damage import CollectingDamage


class Findings:
    """A list that keeps one finding per object and problem."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def add(self, object_key: str, code: str, problem: str) -> None:
        finding = Finding(object_key, code, problem)
        if finding not in self.all:
            self.all.append(finding)

    def add_damage(self, problems: Problems) -> None:
        """Add what a check found that is damage."""
        for problem in problems.all:
            if problem.severity is Severity.DAMAGE:
                self.add(problem.object_key, problem.code, problem.text)

    def collecting(self, object_key: str) -> CollectingDamage:
        """Turn damage and missing objects inside the block into findings; `object_key` is used if
        the error names none.
        """
        return CollectingDamage(object_key, self.add)

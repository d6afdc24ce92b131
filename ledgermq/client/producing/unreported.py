"""Failures that nobody has been told of yet: they surface at the producer's next flush or close.

Bounded: the oldest are dropped.
"""

from __future__ import annotations

from ledgermq.client.producing.delivery import Outcome

OUTCOMES_MAX = 100


class Unreported:
    def __init__(self) -> None:
        self._outcomes: list[Outcome] = []

    def note(self, outcome: Outcome) -> None:
        """`outcome` has an error."""
        if len(self._outcomes) >= OUTCOMES_MAX:
            self._outcomes = [old for old in self._outcomes if not old.reported][1 - OUTCOMES_MAX :]
        self._outcomes.append(outcome)

    def raise_first(self) -> None:
        """Raises the first error that nobody awaited; none of the rest is raised again."""
        outcomes, self._outcomes = [outcome for outcome in self._outcomes if not outcome.reported], []
        for outcome in outcomes:
            outcome.raise_error()

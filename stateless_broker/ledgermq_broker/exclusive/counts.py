"""Define what a broker counts about exclusive producers for its metrics; every method may be overridden."""

from __future__ import annotations

CHANGES = ("opened", "fenced", "expired", "released")


class HolderCounts:
    """Methods are called on the event loop and must return at once."""

    def changed(self, change: str) -> None:
        """Count a change of a partition's holder. `change`: one of CHANGES; fenced: another producer took the
        partition, expired: the holder renewed nothing.
        """

    def refused(self, code: str) -> None:
        """Count a batch that was refused. `code`: of the error."""

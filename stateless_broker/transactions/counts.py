"""Count what transactions do in one broker, for metrics; every method may be overridden."""

from __future__ import annotations

from typing import NamedTuple

from transactions.types import State

CAUSES = ("producer", "asked", "timeout", "fenced", "checks", "operator")
"""Why something was decided. asked: `outcome` was asked of what was undecided, which is aborted then.
fenced: a bundle held something of an epoch that is over. checks: of a half message.
"""


class TransactionSizes(NamedTuple):
    """What one partition of `__transactions` knows, and what its bundle holds. Ages are 0.0 where
    there is nothing.
    """

    ids: int
    prepared: int
    incomplete: int
    incomplete_s: float
    """Since the decision, or the last bundle's answer, of the one that waits longest."""
    staged: int
    """Transactions that have batches in the bundle."""
    staged_batches: int
    staged_bytes: int
    staged_s: float
    """Since the oldest staging, of batches or of offsets."""


class TransactionCounts:
    """Methods are called on the event loop and must return at once."""

    def ended(self, partition: int, state: State, cause: str) -> None:
        """A coordinator decided. `cause`: one of CAUSES."""

    def completed(self, bundle: int, seconds: float) -> None:
        """The bundle made a part visible, or dropped it, `seconds` after the decision was known to
        the coordinator that pushed it.
        """

    def completion_failed(self, bundle: int, code: str) -> None:
        """A bundle did not complete its part this time; the call is repeated."""

    def carried(self, bundle: int, size_bytes: int) -> None:
        """Staged bytes were carried forward."""

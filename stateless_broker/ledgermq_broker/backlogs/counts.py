"""Define what a broker counts about backlog quotas for its metrics; every method may be overridden."""

from __future__ import annotations


class BacklogCounts:
    """Methods are called on the event loop and must return at once."""

    def refused(self, topic: str, policy: str) -> None:
        """Count a batch that was refused because its partition is above its backlog quota."""

    def evicted(self, topic: str, records: int) -> None:
        """Count records that were deleted because their partition was above its backlog quota."""

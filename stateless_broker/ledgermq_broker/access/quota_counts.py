"""Define what a broker counts about quotas for its metrics; every method may be overridden."""

from __future__ import annotations


class QuotaCounts:
    """Methods are called on the event loop and must return at once. `limit`: title of a `quotas.Limit`."""

    def refused(self, principal: str, limit: str) -> None:
        """Count a call, or a frame of a stream, that was refused."""

    def held(self, principal: str, limit: str, seconds: float) -> None:
        """Count an answer that was held back."""

"""Define what a broker counts about queues for its metrics; every method may be overridden."""

from __future__ import annotations

from typing import NamedTuple

WORDS = ("accept", "reject", "release", "return", "renew")


class ShareSizes(NamedTuple):
    """Sizes of one partition of a queue group."""

    group: str
    topic: str
    backlog: int
    """Messages that are not finished: leased, waiting and open."""
    leased: int
    waiting: int


class ShareCounts:
    """Methods are called on the event loop and must return at once."""

    def leased(self, group: str, messages: int, again: int) -> None:
        """Count messages that were sent to a member. `again`: those that had been delivered before."""

    def answered(self, group: str, word: str, messages: int, late: int) -> None:
        """Count what members said. `word`: one of WORDS. `late`: messages for which it did not count."""

    def expired(self, group: str, messages: int) -> None:
        """Count messages whose lease ended by its time."""

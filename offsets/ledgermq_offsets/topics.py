"""Describe topics to groups; the broker provides this view of its copy of the catalog."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class TopicSize(NamedTuple):
    topic_id: int
    name: str
    partitions: int


class TopicsView(Protocol):
    """User topics as this broker knows them now; the view may be behind.

    As long as `version` is the same, every answer is, too.
    """

    @property
    def version(self) -> int:
        """Return the version, which grows with every change of the catalog."""
        ...

    def by_name(self, name: str) -> TopicSize | None:
        """Return a live user topic; None for any other name and for internal topics."""
        ...

    def by_id(self, topic_id: int) -> TopicSize | None: ...

    def names(self) -> Iterable[str]:
        """Return the names of all live user topics."""
        ...

    def is_removed(self, topic_id: int) -> bool:
        """Return True if the topic existed and was deleted for good. An id that is new to this broker does
        not count as removed, nor does a topic that can be brought back.
        """
        ...

    def kept_until_ms(self, topic_id: int, now_ms: int) -> int:
        """Return until when a topic was deleted and could be brought back: `now_ms` if it can be, 0 if it was never
        brought back. Committed offsets do not age in that time: no group could commit.
        """
        ...

    def rack(self, topic: TopicSize, partition: int) -> str:
        """Return the rack that serves the partition best, to compare with the members' racks; "" if
        unknown. Only a hint.
        """
        ...

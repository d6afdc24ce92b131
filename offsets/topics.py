"""What groups need to know of topics; the broker gives it from its copy of the catalog."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class TopicSize(NamedTuple):
    topic_id: int
    name: str
    partitions: int


class TopicsView(Protocol):
    """User topics as this broker knows them now, perhaps not the newest.

    All answers change only when `version` does.
    """

    @property
    def version(self) -> int:
        """Grows with every change of the catalog."""
        ...

    def by_name(self, name: str) -> TopicSize | None:
        """A living user topic; None for internal ones too."""
        ...

    def by_id(self, topic_id: int) -> TopicSize | None: ...

    def names(self) -> Iterable[str]:
        """Of all living user topics."""
        ...

    def is_removed(self, topic_id: int) -> bool:
        """It was there and is not any more; an id that this broker has not heard of yet is not
        removed.
        """
        ...

    def rack(self, topic: TopicSize, partition: int) -> str:
        """Where the partition is served best, compared with the members' racks; "" = nothing is
        known. Only a hint.
        """
        ...

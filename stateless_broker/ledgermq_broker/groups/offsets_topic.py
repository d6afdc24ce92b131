"""Give groups what they need of the catalog: the partition of a group in `__consumer_offsets`, and
the live user topics by name and by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from crc32c import crc32c

from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic
from ledgermq_offsets.topics import TopicSize


def partition_of(group: str, partitions: int) -> int:
    return int(crc32c(group.encode())) % partitions


class CatalogView:
    """A `TopicsView`. `catalog()` returns this broker's current copy; `rack_of(bundle)` the rack of
    the bundle's owner, "" if it has none.
    """

    def __init__(self, catalog: Callable[[], Catalog], rack_of: Callable[[int], str]) -> None:
        self._catalog = catalog
        self._rack_of = rack_of

    @property
    def version(self) -> int:
        return self._catalog().offset

    def by_name(self, name: str) -> TopicSize | None:
        return _size(self._catalog().topics_by_name.get(name))

    def by_id(self, topic_id: int) -> TopicSize | None:
        return _size(self._catalog().topics_by_id.get(topic_id))

    def names(self) -> Iterable[str]:
        return [topic.name for topic in self._catalog().living_topics() if not topic.internal]

    def is_removed(self, topic_id: int) -> bool:
        catalog = self._catalog()
        return catalog.is_removed(topic_id, catalog.offset)

    def kept_until_ms(self, topic_id: int, now_ms: int) -> int:
        topic = self._catalog().topics_by_id.get(topic_id)
        if topic is None:
            return 0
        return topic.undeleted_ms if topic.trash is None else now_ms

    def rack(self, topic: TopicSize, partition: int) -> str:
        """Return the rack of the broker that owns the partition now."""
        found = self._catalog().topics_by_id.get(topic.topic_id)
        return self._rack_of(found.bundles[partition]) if found is not None else ""


def _size(topic: Topic | None) -> TopicSize | None:
    return (
        None
        if topic is None or not topic.living or topic.internal
        else TopicSize(topic.id, topic.name, topic.partitions)
    )

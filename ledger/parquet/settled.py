"""What this process knows of topics that are keyed no more: partitions of which no version holds
anything, so nobody asks the store again.

Only a topic that is keyed writes there, so that holds until it is altered. What somebody puts late
all the same, who slept since before the alteration, is found by the next process that starts.
"""

from __future__ import annotations

from ledger.topics.catalog import Catalog, Topic


class SettledPartitions:
    """By the version of the topic as of which nothing was found. As many as living topics have."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, set[int]]] = {}

    def __contains__(self, of: tuple[Topic, int]) -> bool:
        topic, partition = of
        version, partitions = self._known.get(topic.id, (topic.version, ()))
        return version == topic.version and partition in partitions

    def add(self, topic: Topic, partition: int) -> None:
        version, partitions = self._known.get(topic.id, (topic.version, set[int]()))
        if version != topic.version:
            partitions = set()
        self._known[topic.id] = topic.version, partitions | {partition}

    def forget_removed(self, catalog: Catalog) -> None:
        for topic_id in self._known.keys() - {topic.id for topic in catalog.living_topics()}:
            del self._known[topic_id]

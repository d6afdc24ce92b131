"""Records and bytes by topic, up to a cap: the first topics have totals of their own, all others
share one. Plain numbers, for every batch.

Who has totals of its own keeps them until the topic is removed, so that no total ever goes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

TOPICS_MAX = 100
"""Topics with totals of their own; each costs some ten series for Prometheus."""

OTHER = "(other)"
"""The label of all topics above the cap; no topic can be called so."""


@dataclass(slots=True)
class Totals:
    records_in: int = 0
    bytes_in: int = 0
    batches_in: int = 0
    records_out: int = 0
    bytes_out: int = 0


class TopicTotals:
    def __init__(self, topics_max: int) -> None:
        self.topics_max = topics_max
        self.other = Totals()
        self._by_topic: dict[int, Totals] = {}
        self._own = 0

    def of(self, topic_id: int) -> Totals:
        return self._by_topic.get(topic_id) or self._enter(topic_id)

    def _enter(self, topic_id: int) -> Totals:
        if self._own < self.topics_max:
            self._own += 1
            totals = Totals()
        else:
            totals = self.other
        self._by_topic[topic_id] = totals
        return totals

    def named(self, names: Mapping[int, str]) -> Iterator[tuple[str, Totals]]:
        """Each label with its totals.

        `names`: the topics that there are; the others are forgotten, and make room.
        """
        for gone in self._by_topic.keys() - names.keys():
            self._own -= self._by_topic.pop(gone) is not self.other
        for topic_id, totals in self._by_topic.items():
            if totals is not self.other:
                yield names[topic_id], totals
        yield OTHER, self.other

"""Count records and bytes by topic, up to a cap: the first topics have their own totals, all others
share one. Plain numbers, because every batch adds to them.

A topic with its own totals keeps them until it is removed, so no total ever decreases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

TOPICS_MAX = 100
"""Topics with their own totals; each costs Prometheus about a dozen series."""

OTHER = "(other)"
"""Label of all topics above the cap; no topic can have this name."""


@dataclass(slots=True)
class Totals:
    records_in: int = 0
    bytes_in: int = 0
    batches_in: int = 0
    records_out: int = 0
    bytes_out: int = 0
    batches_left_out: int = 0
    records_left_out: int = 0
    bytes_left_out: int = 0


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
        """Return each label with its totals.

        `names`: the existing topics; totals of all others are dropped, which makes room.
        """
        for gone in self._by_topic.keys() - names.keys():
            self._own -= self._by_topic.pop(gone) is not self.other
        for topic_id, totals in self._by_topic.items():
            if totals is not self.other:
                yield names[topic_id], totals
        yield OTHER, self.other

"""Define what a broker counts about queues for its metrics, where every method may be overridden, and the values that
are read at each scrape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ledgermq_broker.internal.feature import Gauge, Serving, refused

QUEUES_MAX = 256
"""Queue groups of one broker that have their own metrics."""
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


def gauges(queues: Serving[Any] | None) -> Iterator[Gauge]:
    totals: dict[tuple[str, str], list[int]] = {}
    for bundle in queues.served() if queues else ():
        for sizes in bundle.sizes():
            total = totals.setdefault(sizes[:2], [0, 0, 0])
            for at, value in enumerate(sizes[2:]):
                total[at] += value
    shown = sorted(totals.items())[:QUEUES_MAX]
    for at, (name, text) in enumerate(
        (
            ("backlog_messages", "Messages of the partitions served here that the queue group has not finished"),
            ("leased_messages", "Messages that are leased to members of the queue group"),
            ("waiting_messages", "Messages that members gave back with a delay that is not over"),
        )
    ):
        samples = [(labels, total[at]) for labels, total in shown]
        yield Gauge(f"ledgermq_queue_{name}", text, ("group", "topic"), samples)
    yield refused(
        "ledgermq_refused_queue_partitions",
        "Partitions of __shares whose records cannot be read: no queue group of their bundles is served; the label"
        " says why",
        queues,
    )

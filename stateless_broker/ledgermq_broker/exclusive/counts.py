"""Define what a broker counts about exclusive producers for its metrics, where every method may be overridden, and the
values that are read at each scrape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ledgermq_broker.internal.feature import Gauge, Serving, refused

CHANGES = ("opened", "fenced", "expired", "released")


class HolderCounts:
    """Methods are called on the event loop and must return at once."""

    def changed(self, change: str) -> None:
        """Count a change of a partition's holder. `change`: one of CHANGES; fenced: another producer took the
        partition, expired: the holder renewed nothing.
        """

    def refused(self, code: str) -> None:
        """Count a batch that was refused. `code`: of the error."""


def gauges(holders: Serving[Any] | None) -> Iterator[Gauge]:
    held = sum(len(each.held()) for each in holders.served()) if holders else 0
    yield Gauge(
        "ledgermq_exclusive_partitions",
        "Partitions served here that an exclusive producer has for itself",
        (),
        [((), held)],
    )
    yield refused(
        "ledgermq_refused_exclusive_partitions",
        "Partitions of __holders whose records cannot be read: their bundles take no records; the label says why",
        holders,
    )

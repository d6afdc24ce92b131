"""Define the values of groups for metrics that are read at each scrape. The lag of groups is sampled instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ledgermq_broker.internal.feature import Gauge, Serving, refused


def gauges(groups: Serving[Any] | None) -> Iterator[Gauge]:
    yield refused(
        "ledgermq_refused_group_partitions",
        "Partitions of __consumer_offsets whose records cannot be read: their groups are not served; the label"
        " says why",
        groups,
    )

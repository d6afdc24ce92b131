"""Define what a broker counts about timed messages for its metrics, where every method may be overridden, and the
values that are read at each scrape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ledgermq_broker.internal.feature import Gauge, Serving, by_bundle, refused

DROPS = ("recalled", "removed")
"""Why a message was dropped instead of delivered. removed: its topic was."""

OUTCOMES = ("recalled", "too_late", "forgotten")
"""Answers to a call to recall a message."""


class TimerSizes(NamedTuple):
    """Sizes of the timed messages of one bundle."""

    messages: int
    """Messages that wait, with those that were recalled."""
    size_bytes: int
    in_memory: int
    """Messages that wait and are in the index in memory."""
    body_bytes: int
    ranges: int
    recalls: int
    """Recalls that are remembered."""
    overdue_s: float
    """How long the oldest message that is due and in memory, or could be in a range that is not loaded,
    has waited for its delivery; 0.0 if there is none.
    """
    troubles: int
    """Kinds of work that an error delays at present."""


class TimerCounts:
    """Methods are called on the event loop and must return at once."""

    def taken_in(self, bundle: int, messages: int, size_bytes: int) -> None:
        """Count messages that became durable in the intake."""

    def delivered(self, bundle: int, messages: int, size_bytes: int, late_ms: float) -> None:
        """Count messages that became durable in their partitions, `late_ms` after the first of them was due."""

    def dropped(self, bundle: int, messages: int, why: str) -> None:
        """Count messages that were not delivered when they were due. `why`: one of DROPS."""

    def recalled(self, bundle: int, outcome: str) -> None:
        """Count a call to recall a message. `outcome`: one of OUTCOMES."""

    def moved(self, bundle: int, messages: int, size_bytes: int) -> None:
        """Count messages that were written again, into the range of their time."""


SIZES = {
    "messages": ("messages", "Timed messages that wait in the bundle, with those that were recalled"),
    "size_bytes": ("waiting_bytes", "Bytes of the timed messages that wait in the bundle, about"),
    "in_memory": ("messages_in_memory", "Timed messages that wait and are in the index in memory"),
    "body_bytes": ("body_bytes", "Bytes of timed messages that are held in memory"),
    "ranges": ("ranges", "Ranges of time that have a hidden partition in the bundle"),
    "recalls": ("recalls_remembered", "Recalls of timed messages that are remembered in the bundle"),
    "overdue_s": (
        "overdue_seconds",
        "Time since the oldest timed message of the bundle was due that is not delivered",
    ),
    "troubles": ("troubles", "Kinds of work on timed messages that an error delays; the log names the errors"),
}


def gauges(timed: Serving[Any] | None) -> Iterator[Gauge]:
    yield from by_bundle("ledgermq_timed_", SIZES, timed)
    yield refused(
        "ledgermq_refused_timer_partitions",
        "Partitions of __timers whose records cannot be read: no timed message of their bundles is taken in or"
        " delivered; the label says why",
        timed,
    )

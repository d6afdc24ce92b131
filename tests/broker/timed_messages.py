"""Settings and values of tests of timed messages."""

from __future__ import annotations

import pytest

from ledgermq_broker.bundle.shared import write_gate
from ledgermq_broker.bundle.upkeep import upkeep
from ledgermq_broker.cluster import pulse
from ledgermq_broker.cuts import automatic
from tests.broker.timer_calls import Timed, Watcher, constants_of

BUNDLES = {"bundles": 3}
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
SMALL = constants_of(flush_after_ms=1000, chunk_bytes=400, log_start_ms=5000)
"""Flushes at once, in many small pieces."""
SLOW = {"heartbeat_interval_ms": 6 * 3_600_000, "holding_ms": 0}
"""With `seldom_looks`, for tests that take days."""


def seldom_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers look seldom whether they stood still, there is room, a topic has a table, and a cut is due."""
    monkeypatch.setattr(pulse, "BEAT_S", 6 * 3600.0)
    monkeypatch.setattr(write_gate, "RESERVE_LOOK_S", 6 * 3600.0)
    monkeypatch.setattr(upkeep, "TABLE_PAUSE_NONE_S", 6 * 3600.0)
    monkeypatch.setattr(automatic, "LOOK_S_MAX", 6 * 3600.0)


def lateness_s(watcher: Watcher, dues: dict[bytes, float]) -> list[float]:
    return [seen_s - dues[value] for value, seen_s in watcher.seen]


def numbered(count: int, first_s: float, step_s: float = 0.0, name: str = "m") -> list[Timed]:
    return [(b"%s%d" % (name.encode(), number), first_s + number * step_s) for number in range(count)]

"""Calls of a handler are spread evenly, and not begun more often than the rate says."""

from __future__ import annotations

import pytest

from ledgermq.client.groups.handlers.pace import BURST_S, Pace


@pytest.mark.parametrize("rate_per_s", [0.1, 1, 30, 1000])
def test_so_many_calls_begin_in_any_second(rate_per_s: float) -> None:
    pace, now_s, begun = Pace(rate_per_s), 100.0, []
    while now_s < 100 + max(3.0, 3 / rate_per_s):
        if room := pace.room(now_s, 10_000):
            pace.begun(now_s, room)
            begun += [now_s] * room
        else:
            now_s += max(pace.wait_s(now_s), 1e-9)
    span_s = begun[-1] - begun[0]
    assert len(begun) - 1 == pytest.approx(span_s * rate_per_s, abs=1 + BURST_S * rate_per_s)


def test_after_a_rest_there_is_a_short_burst_only() -> None:
    pace = Pace(1000)
    pace.begun(0.0)
    assert pace.room(3600.0, 10_000) <= 1 + BURST_S * 1000
    pace.begun(3600.0, 51)
    assert pace.room(3600.0, 10_000) == 0


def test_without_a_rate_nothing_waits() -> None:
    pace = Pace(None)
    pace.begun(1.0, 10)
    assert (pace.room(1.0, 7), pace.wait_s(1.0)) == (7, 0.0)

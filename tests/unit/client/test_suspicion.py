"""When others are asked about a broker that does not answer."""

from __future__ import annotations

import pytest

from ledgermq.client.suspicion import ask_at_s


def test_others_are_asked_after_two_seconds_and_then_ever_more_rarely() -> None:
    asked, times = float("-inf"), list[float]()
    while (asked := ask_at_s(100.0, asked)) < 110.0:
        times.append(asked - 100.0)
    assert times == pytest.approx([2.0, 2.5, 3.125, 3.906, 4.883, 6.104, 7.629, 9.537], abs=0.001)


def test_a_question_of_before_does_not_count() -> None:
    assert ask_at_s(100.0, 99.0) == 102.0

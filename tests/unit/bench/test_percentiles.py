"""Percentiles and distributions of measured values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.latency import CURVE_POINTS, distribution
from bench.percentiles import at

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=500).map(sorted)


def test_of_a_hundred_values() -> None:
    hundred = [float(n) for n in range(100)]
    assert at(hundred, 0.0) == 0.0
    assert at(hundred, 0.5) == 50.0
    assert at(hundred, 0.99) == 99.0
    assert at(hundred, 1.0) == 99.0
    assert at([7.0], 0.99) == 7.0


def test_of_no_value() -> None:
    with pytest.raises(ValueError, match="no values"):
        at([], 0.5)


@given(values, st.floats(0, 1))
def test_no_fewer_than_its_part_are_at_or_below(given: list[float], part: float) -> None:
    found = at(given, part)
    assert sum(value <= found for value in given) >= part * len(given)


@given(values)
def test_a_distribution_keeps_both_ends_and_rises(given: list[float]) -> None:
    points = distribution(given)
    assert len(points) == min(CURVE_POINTS, len(given))
    assert points[0][0] == given[0]
    assert points[-1] == (given[-1], 1.0)
    assert points == sorted(points)
    for value, part in points:
        assert sum(other <= value for other in given) >= round(part * len(given))

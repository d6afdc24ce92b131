"""Loads of bundles: smoothed, coarse, and announced seldom."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.buffers import MIB
from stateless_broker.loads import REQUEST_BYTES, Loads, LoadTimes, Traffic

BEAT_S = 3.0
HOUR = 1200
"""Beats."""


def test_requests_and_bytes_cost() -> None:
    traffic = Traffic()
    traffic.add(100)
    traffic.add(0)
    assert traffic.cost_bytes == 100 + 2 * REQUEST_BYTES


def announce(loads: Loads, rates: list[float], known: dict[int, int] | None = None) -> list[dict[int, int]]:
    """Announce at each beat, while bundle 1 is served at these rates."""
    counted, found = 0.0, [loads.announced({1: 0}, known or {}, 0.0)]
    for beat, rate in enumerate(rates, 1):
        counted += rate * BEAT_S
        found.append(loads.announced({1: round(counted)}, known or {}, beat * BEAT_S))
    return found


def changes(found: list[dict[int, int]]) -> int:
    return sum(before != after for before, after in pairwise(found))


def test_an_idle_bundle_is_never_announced() -> None:
    assert announce(Loads(LoadTimes()), [0.0] * HOUR) == [{}] * (HOUR + 1)
    assert announce(Loads(LoadTimes()), [0.9 * MIB] * HOUR) == [{}] * (HOUR + 1)


def test_a_steady_load_is_announced_a_few_times_and_then_rests() -> None:
    found = announce(Loads(LoadTimes()), [100.0 * MIB] * HOUR)
    assert changes(found) <= 8
    assert changes(found[HOUR // 6 :]) == 0
    assert found[-1][1] == pytest.approx(100 * MIB, rel=0.25)


@given(st.integers(0, 10_000))
def test_requests_at_random_times_are_announced_seldom(seed: int) -> None:
    """A hundred requests a second, in bursts: at most some changes an hour."""
    random = Random(seed)
    rates = [random.choice((0.0, 0.5, 1.0, 1.0, 1.5, 2.0)) * 100 * REQUEST_BYTES for _ in range(HOUR)]
    assert changes(announce(Loads(LoadTimes()), rates)[100:]) <= 12


def test_a_load_that_ends_fades_with_the_half_life() -> None:
    found = announce(Loads(LoadTimes()), [64.0 * MIB] * 400 + [0.0] * 400)
    after_a_minute, at_the_end = found[400 + 20][1], found[-1]
    assert after_a_minute == pytest.approx(32 * MIB, rel=0.3)
    assert at_the_end == {}


def test_samples_are_taken_seldom() -> None:
    loads = Loads(LoadTimes(sample_s=15.0))
    assert loads.announced({1: 0}, {}, 0.0) == {}
    assert loads.announced({1: 10**12}, {}, 14.9) == {}
    assert 1 in loads.announced({1: 10**12}, {}, 15.0)


def test_a_bundle_begins_with_what_its_last_owner_announced() -> None:
    loads = Loads(LoadTimes())
    assert loads.announced({1: 0, 2: 0}, {1: 8 * MIB, 3: 5}, 0.0) == {1: 8 * MIB}
    assert loads.announced({2: 0}, {}, 3.0) == {}, "it is no longer served here"
    assert loads.announced({1: 0, 2: 0}, {1: 2 * MIB}, 6.0) == {1: 2 * MIB}


def test_a_new_term_counts_from_zero() -> None:
    loads = Loads(LoadTimes(half_life_s=15.0))
    loads.announced({1: 1500 * MIB}, {}, 0.0)
    assert loads.announced({1: 300 * MIB}, {}, 15.0) == {1: 10 * MIB}

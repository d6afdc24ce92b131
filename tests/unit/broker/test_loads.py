"""Loads of bundles: smoothed, coarse, and announced seldom."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.buffers import KIB, MIB
from ledgermq_broker.bundle.loads import REQUEST_BYTES, Loads, LoadTimes, PartitionLoads, Traffic
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import Batch

BEAT_S = 3.0
HOUR = 1200
"""Beats."""
FIRST, SECOND = PartitionId(7, 0), PartitionId(7, 1)


def batch_of(key: PartitionId, size: int) -> Batch:
    return Batch(key.topic_id, key.partition, 1, 0, 0, 0, bytes(size))


def test_requests_and_bytes_cost() -> None:
    traffic = Traffic()
    traffic.fetched(FIRST, 100)
    traffic.fetched(FIRST, 0)
    assert traffic.cost_bytes == 100 + 2 * REQUEST_BYTES
    traffic.produced([batch_of(FIRST, 7), batch_of(SECOND, 5)])
    assert traffic.cost_bytes == 112 + 3 * REQUEST_BYTES
    by_partition = {FIRST: 107 + 5 * REQUEST_BYTES // 2, SECOND: 5 + REQUEST_BYTES // 2}
    assert traffic.take() == by_partition, "the batches share what their request costs"
    assert traffic.take() == {}
    traffic.produced([])
    assert (traffic.cost_bytes, traffic.take()) == (112 + 4 * REQUEST_BYTES, {})


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


class Served:
    """Bundles that one broker serves, a beat at a time."""

    def __init__(self, *bundles: int) -> None:
        self.loads = PartitionLoads(LoadTimes())
        self.traffic = {bundle: Traffic() for bundle in bundles}
        self.now = 0.0
        self.loads.sample(self.traffic, self.now)

    def run(self, seconds: float, bundle: int, rates: dict[PartitionId, float]) -> None:
        """Serve partitions of a bundle at these rates, in bytes a second."""
        for _ in range(round(seconds / BEAT_S)):
            self.now += BEAT_S
            for key, rate in rates.items():
                self.traffic[bundle].fetched(key, round(rate * BEAT_S) - REQUEST_BYTES)
            self.loads.sample(self.traffic, self.now)

    def of(self, bundle: int) -> dict[PartitionId, int]:
        found = self.loads.of(bundle)
        assert found is not None
        return dict(found.by_partition)


def test_a_steady_load_of_a_partition_is_known_from_the_first_sample_on() -> None:
    served = Served(1, 2)
    assert served.of(1) == {}
    for seconds in (15, 15, 600):
        served.run(seconds, 1, {FIRST: 8 * MIB, SECOND: MIB})
        assert served.of(1) == {FIRST: pytest.approx(8 * MIB, rel=1e-6), SECOND: pytest.approx(MIB, rel=1e-6)}
    assert served.of(2) == {}
    found = served.loads.of(1)
    assert found is not None
    assert found.measured_s == 630
    assert served.loads.of(3) is None


def test_the_load_of_a_partition_fades_and_idle_ones_take_no_memory() -> None:
    served = Served(1)
    served.run(600, 1, {FIRST: 8 * MIB, SECOND: 0.9 * KIB})
    assert list(served.of(1)) == [FIRST]
    served.run(60, 1, {})
    assert served.of(1) == {FIRST: pytest.approx(4 * MIB, rel=0.01)}
    served.run(60 * 14, 1, {})
    assert served.of(1) == {}
    assert served.traffic[1].by_partition == {}


def test_while_a_partition_moves_the_sum_of_both_bundles_is_its_load() -> None:
    """So a plan that is made again meanwhile does not take its new bundle for idle."""
    served = Served(1, 2)
    served.run(900, 1, {FIRST: 8 * MIB})
    for _ in range(60):
        served.run(15, 2, {FIRST: 8 * MIB})
        both = served.of(1).get(FIRST, 0) + served.of(2)[FIRST]
        assert both == pytest.approx(8 * MIB, rel=0.01)
    assert FIRST not in served.of(1)


def test_a_new_term_of_a_bundle_measures_anew() -> None:
    served = Served(1)
    served.run(300, 1, {FIRST: 8 * MIB})
    served.traffic[1] = Traffic()
    served.run(30, 1, {SECOND: MIB})
    found = served.loads.of(1)
    assert found is not None
    assert found.measured_s == 15, "since the first look at the new term"
    assert served.of(1) == {SECOND: pytest.approx(MIB, rel=0.5)}
    served.traffic.clear()
    served.loads.sample(served.traffic, served.now)
    assert served.loads.of(1) is None

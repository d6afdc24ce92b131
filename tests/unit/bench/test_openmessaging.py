"""The load of row S5 in virtual time: all of it arrives, and both kinds of keys do what they are there for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.distant import EXPRESS
from bench.openmessaging.shape import VALUE_BYTES, Shape
from bench.openmessaging.simulated import simulate

SMALL = Shape(0.2, seconds=0.5, settling_s=0.2, producers=2, partitions=4)


@pytest.mark.parametrize("keyed", [False, True])
def test_everything_is_acknowledged_and_read(keyed: bool) -> None:
    found = simulate(replace(SMALL, keyed=keyed), EXPRESS)

    assert found.borne.records == pytest.approx(0.2e6 * 0.5 / VALUE_BYTES, abs=2)
    assert 0 < found.borne.acknowledged_ms[0] <= found.borne.acknowledged_ms[1] < 1000
    assert 0 < found.borne.seen_ms[0] <= found.borne.seen_ms[1] < 1000
    assert found.puts_per_gib > 0
    assert found.dollars_per_gib > found.puts_per_gib * 4e-6

"""Queries without a broker, while the partitions that they read move: the world and the judge of the simulation's
level *queries*, by any seed.
"""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.queries_run import CHANCES, KINDS, MOVES, ROOMS, Kind, QueriesPlan, QueriesRun
from tests.simulation.result import simulate


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32), chance=st.sampled_from(CHANCES), moves=st.sampled_from(sorted({*MOVES})))
@settings(max_examples=10)
def test_each_record_is_read_once(kind: Kind, room: int, seed: int, chance: float, moves: float) -> None:
    result = simulate(partial(QueriesRun, plan=QueriesPlan(kind, chance, moves, room)), seed)
    assert not result.violations, "\n".join([*result.trace.lines, *map(str, result.violations)])

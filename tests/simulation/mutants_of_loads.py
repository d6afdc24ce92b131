"""Bugs in placement by load (docs/decisions/0076)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stateless_broker import ownership, placement
from stateless_broker.loads import Loads
from tests.simulation.load_watch import loaded
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("cluster", likely=loaded)
def placement_without_hysteresis(patch: Patch) -> None:
    """A bundle moves although the loads are nearly even, or nothing is gained."""
    patch.setattr(placement, "EXCESS_MIN", -1.0)
    patch.setattr(placement, "GAIN_MIN", 0.0)


@mutant("cluster", likely=loaded)
def promises_are_not_kept(patch: Patch) -> None:
    """A bundle that was handed over for load is placed by count, mostly where it was."""
    patch.setattr(ownership, "promised_in", lambda present, owners, live: {})


@mutant("cluster", likely=loaded)
def loads_are_not_looked_at(patch: Patch) -> None:
    """Bundles are placed by count alone."""
    patch.setattr(ownership, "relief", lambda live, owners, loads: None)


@mutant("cluster", likely=loaded)
def loads_are_forgotten_at_a_takeover(patch: Patch) -> None:
    """A bundle looks idle at its next owner until its load is measured again."""
    real = Loads.announced

    def announced(self: Loads, counted: Mapping[int, int], known: Mapping[int, int], now: float) -> dict[int, int]:
        return real(self, counted, {}, now)

    patch.setattr(Loads, "announced", announced)

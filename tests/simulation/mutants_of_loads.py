"""Bugs in placement by load (docs/decisions/0076), and in moves of partitions for it (0077)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import ledgermq
from ledgermq import evenness
from ledgermq.client.admin import rebalancing as rebalance
from ledgermq.client.admin.rebalancing import Placement
from ledgermq.evenness import Partition
from ledgermq_broker.bundle.loads import Loads
from ledgermq_broker.cluster import ownership
from ledgermq_broker.cluster.placement import bundles as placement
from ledgermq_broker.cluster.placement import nearness
from tests.simulation.load_watch import loaded
from tests.simulation.mutants import mutant
from tests.simulation.near_watch import near

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


@mutant("cluster", likely=loaded)
def partitions_move_though_nothing_is_gained(patch: Patch) -> None:
    """The busiest partition of the fullest bundle moves, also where that makes another one as full."""

    def nearest(held: list[tuple[int, Partition]], *rest: int) -> tuple[int, Partition] | None:
        return held[-1] if held else None

    patch.setattr(evenness, "_nearest", nearest)


@mutant("cluster", likely=loaded)
def load_of_a_partition_where_it_is_alone(patch: Patch) -> None:
    """A partition that moved has the load that its new bundle has measured, and none before that."""
    real = rebalance.placement_of

    def placement_of(topics: Sequence[ledgermq.TopicDescription], loads: Sequence[ledgermq.BundleLoads]) -> Placement:
        there, _ = rebalance.where(topics)
        here = [
            replace(each, partitions={p: load for p, load in each.partitions.items() if there.get(p) == each.bundle})
            for each in loads
        ]
        return real(topics, here)

    patch.setattr(rebalance, "placement_of", placement_of)


@mutant("cluster", likely=loaded)
def partitions_on_their_way_count_where_they_were(patch: Patch) -> None:
    """A command that is begun again plans as if the moves under way helped nothing."""
    real = rebalance.where

    def where(topics: Sequence[ledgermq.TopicDescription]) -> tuple[dict[Partition, int], dict[Partition, int]]:
        there, moving = real(topics)
        return there | moving, moving

    patch.setattr(rebalance, "where", where)


@mutant("cluster", likely=near)
def bytes_are_not_followed(patch: Patch) -> None:
    """Bundles stay where they are, whichever rack their bytes come from."""
    patch.setattr(ownership, "nearer", lambda *given: None)


@mutant("cluster", likely=near)
def bytes_are_followed_without_hysteresis(patch: Patch) -> None:
    """A bundle moves to another rack for a byte more than it has of its own."""
    patch.setattr(nearness, "GAIN_OF_BYTES_MIN", 0.0)


@mutant("cluster", likely=near)
def bundles_with_racks_are_placed_by_count(patch: Patch) -> None:
    """A bundle that has followed its bytes is placed by count again."""
    real = ownership.place

    def place(*given: Any, by_rack: bool = False) -> dict[int, str]:
        return real(*given)

    patch.setattr(ownership, "place", place)

"""Plans that even out bundles: never worse, they end, and nothing is left to do after one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.buffers import MIB
from ledgermq.evenness import (
    EXCESS_MIN,
    GAIN_MIN,
    QUIET_BYTES,
    Partition,
    PlacedPartition,
    PlannedMove,
    after,
    loads_of,
    plan,
)

Partitions = dict[Partition, PlacedPartition]
State = tuple[Partitions, list[int], dict[int, int]]


@st.composite
def states(draw: st.DrawFn) -> State:
    """Bundles, some of them empty, with partitions of any load, of which some may not move."""
    bundles = list(range(1, draw(st.integers(2, 7)) + 1))
    loads = st.one_of(st.just(0), st.integers(0, 20), st.integers(1, 10**13))
    drawn = draw(st.lists(st.tuples(st.sampled_from(bundles), loads, st.integers(0, 9)), max_size=30))
    partitions = {("t", n): PlacedPartition(bundle, load, luck > 0) for n, (bundle, load, luck) in enumerate(drawn)}
    fixed = draw(st.dictionaries(st.sampled_from(bundles), st.integers(0, 50)))
    return partitions, bundles, fixed


def placed(*loads: list[int], quiet: bool = False) -> Partitions:
    """Partitions of bundles 1, 2, …, with these loads in MiB/s."""
    found: Partitions = {}
    for bundle, each in enumerate(loads, 1):
        for load in each:
            found["t", len(found)] = PlacedPartition(bundle, load * (1 if quiet else MIB))
    return found


def after_plan(state: State, moves: list[PlannedMove]) -> State:
    partitions, bundles, fixed = state
    return after(partitions, moves), bundles, fixed


def planned(state: State, moves_max: int | None = None) -> list[PlannedMove]:
    partitions, bundles, fixed = state
    return plan(partitions, bundles, fixed, quiet=1, moves_max=moves_max)


def row(state: State) -> list[int]:
    """Loads in descending order, or numbers of partitions if there is no load."""
    partitions, bundles, _ = state
    number = Counter(each.bundle for each in partitions.values())
    found = [number[bundle] for bundle in bundles] if is_idle(state) else loads_of(*state).values()
    return sorted(found, reverse=True)


@given(states())
def test_nothing_is_left_to_do_after_a_plan(state: State) -> None:
    assert planned(after_plan(state, planned(state))) == []


@given(states(), st.integers(0, 8))
def test_a_plan_and_each_beginning_of_one_makes_it_more_even(state: State, moves_max: int) -> None:
    moves = planned(state, moves_max)
    assert len(moves) <= moves_max
    before, now = row(state), row(after_plan(state, moves))
    if moves:
        assert now < before, "the fullest bundles have less"
        assert now[-1] >= before[-1], "and the emptiest has no less"


def is_idle(state: State) -> bool:
    return sum(loads_of(*state).values()) < len(state[1])


@given(states())
def test_only_what_may_move_moves_and_only_once(state: State) -> None:
    partitions, bundles, _ = state
    moves = planned(state)
    assert len({move.partition for move in moves}) == len(moves)
    for move in moves:
        each = partitions[move.partition]
        assert each.may_move
        assert each.bundle == move.source != move.target
        assert move.target in bundles
        assert move.load == each.load
        assert move.by == ("partitions" if is_idle(state) else "load")
        assert each.load or is_idle(state), "idle partitions stay where there is a load"


@given(states())
def test_the_plan_depends_on_no_order(state: State) -> None:
    partitions, bundles, fixed = state
    turned = dict(reversed(partitions.items())), bundles[::-1], dict(reversed(fixed.items()))
    assert planned(turned) == planned(state)


@given(st.integers(2, 7), st.lists(st.tuples(st.integers(1, 7), st.integers(90, 110)), min_size=70, max_size=150))
def test_partitions_that_are_small_beside_a_bundle_become_even(bundles: int, drawn: list[tuple[int, int]]) -> None:
    partitions = {("t", n): PlacedPartition(1 + bundle % bundles, load * MIB) for n, (bundle, load) in enumerate(drawn)}
    numbers = range(1, bundles + 1)
    moves = plan(partitions, numbers)
    loads = loads_of(after(partitions, moves), numbers).values()
    mean = sum(loads) / bundles
    assert max(loads) <= (1 + EXCESS_MIN) * mean
    assert min(loads) >= (1 - EXCESS_MIN) * mean
    too_much = sum(max(0.0, load - mean) for load in loads_of(partitions, numbers).values())
    assert sum(move.load for move in moves) <= too_much / GAIN_MIN + 110 * MIB, "bytes that need not move stay"


def test_within_the_tolerance_nothing_moves() -> None:
    assert plan(placed([5] * 12, [5] * 8), [1, 2]) == [], "a fifth more than the mean, and a fifth less"
    assert Counter(move.source for move in plan(placed([5] * 13, [5] * 8), [1, 2])) == {1: 2}, "to half of that"


def test_only_what_a_new_bundle_lacks_moves() -> None:
    """Four bundles are even, and an empty one is added: each gives its excess, not half of what it has."""
    loads = placed(*[[1] * 10] * 4, [])
    moves = plan(loads, range(1, 6))
    assert Counter(move.source for move in moves) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert {move.target for move in moves} == {5}
    assert sorted(loads_of(after(loads, moves), range(1, 6)).values()) == [8 * MIB] * 5


def test_the_partition_that_fits_best_moves() -> None:
    [move] = plan(placed([9, 5, 2, 1], [1, 6]), [1, 2])
    assert move == PlannedMove(("t", 1), 1, 2, 5 * MIB, "load", 17 * MIB, 7 * MIB, 12 * MIB)


def test_a_bundle_that_only_lacks_load_gets_some() -> None:
    """No bundle has a fifth too much, and one has less than half."""
    moves = plan(placed([1] * 11, [1] * 11, [1] * 11, [1] * 5), range(1, 5))
    assert moves
    assert {move.target for move in moves} == {4}


def test_no_more_moves_than_the_bundle_has_too_much() -> None:
    """It has 2 too much, the empty one lacks 8: 2, 3 and 5 would be as good, and 2 is least."""
    assert plan(placed([10], [10], [10], [2, 3, 5], []), range(1, 6))[0].load == 2 * MIB


def test_of_two_that_fit_alike_the_smaller_one_moves() -> None:
    assert plan(placed([3, 5, 2, 2], [4]), [1, 2])[0].load == 3 * MIB


def test_a_partition_that_is_too_busy_stays_and_the_others_leave_it() -> None:
    loads = placed([100, 3, 3], [1], [1], [])
    moves = plan(loads, range(1, 5))
    assert {("t", 1), ("t", 2)} <= {move.partition for move in moves}
    found = loads_of(after(loads, moves), range(1, 5))
    assert found[1] == 100 * MIB
    assert sorted(found[b] for b in (2, 3, 4)) == [2 * MIB, 3 * MIB, 3 * MIB]


def test_beside_a_bundle_that_cannot_be_helped_the_others_are_evened_out() -> None:
    loads = placed([100], [5, 5], [0], [0])
    moves = plan(loads, range(1, 5))
    assert [(move.source, move.load) for move in moves] == [(2, 5 * MIB)]


def test_what_may_not_move_counts_and_stays() -> None:
    loads = placed([6, 2], [])
    loads["keyed", 0] = PlacedPartition(1, 4 * MIB, may_move=False)
    [move] = plan(loads, [1, 2])
    assert (move.partition, move.mean) == (("t", 0), 6 * MIB)
    assert plan(placed([4], [4]), [1, 2], {1: 2 * MIB}) == []
    [move] = plan(placed([4, 2], [4]), [1, 2], {1: 2 * MIB})
    assert move.load == 2 * MIB, "what the system writes counts"


def test_without_a_load_the_numbers_of_partitions_are_evened_out() -> None:
    idle = placed([0] * 6, [0] * 6, [], quiet=True)
    moves = plan(idle, [1, 2, 3])
    assert {move.by for move in moves} == {"partitions"}
    assert Counter(each.bundle for each in after(idle, moves).values()) == {1: 4, 2: 4, 3: 4}
    assert plan(placed([0] * 3, [0] * 2, quiet=True), [1, 2]) == []


def test_a_load_that_hardly_is_one_is_none() -> None:
    little = placed([QUIET_BYTES // 2] * 3, [QUIET_BYTES // 8], quiet=True)
    assert {move.by for move in plan(little, [1, 2])} == {"partitions"}
    assert {move.by for move in plan(little, [1, 2], quiet=1)} == {"load"}


def test_beside_a_load_idle_partitions_stay() -> None:
    assert plan(placed([5, 0, 0, 0, 0, 0], [5]), [1, 2]) == []


def test_equal_sizes_are_not_exchanged_however_large() -> None:
    """Sums beyond the precision of a float."""
    huge = {("t", n): PlacedPartition(1 + n % 2, 2**60 + n) for n in range(3)}
    assert plan(huge, [1, 2], quiet=1) == []


@pytest.mark.parametrize("bundles", [[], [1]])
def test_without_a_choice_nothing_moves(bundles: list[int]) -> None:
    assert plan(placed([5, 5, 5]), bundles) == []


def test_a_large_cluster_is_planned_in_seconds() -> None:
    loads = {("t", n): PlacedPartition(1 + n % 100, (n % 97 + 1) * MIB) for n in range(10_000)}
    bundles = range(1, 201)
    moves = plan(loads, bundles)
    found = loads_of(after(loads, moves), bundles).values()
    mean = sum(found) / 200
    assert (max(found) - mean) / mean <= EXCESS_MIN
    assert (mean - min(found)) / mean <= EXCESS_MIN

"""Bundles follow their bytes to other racks: never so that a broker is too busy, and at rest in the end."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.evenness import EXCESS_MIN
from ledgermq_broker.cluster.placement.bundles import Relief, bounds, place, relief
from ledgermq_broker.cluster.placement.nearness import FILLED_MAX, GAIN_OF_BYTES_MIN, Patience, nearer

STEPS_MAX = 400
Bytes = dict[int, dict[str, int]]


@st.composite
def views(draw: st.DrawFn) -> tuple[dict[str, str], dict[int, str], dict[int, int], Bytes]:
    """Racks of live brokers, placed bundles, their loads, and their bytes by rack."""
    names = draw(st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=2, max_size=5, unique=True))
    racks = {name: draw(st.sampled_from(["east", "west", "south", ""])) for name in names}
    count = draw(st.integers(2, 30))
    owners = place(range(count), racks, {})
    one_load = draw(st.sampled_from([st.just(100), st.integers(80, 120), st.integers(0, 1000)]))
    loads = {bundle: draw(one_load) for bundle in range(1, count)}
    one_rack = st.dictionaries(st.sampled_from(["east", "west", "south", "north", ""]), st.integers(0, 1000))
    return racks, owners, loads, {bundle: draw(one_rack) for bundle in range(1, count)}


def crossing(racks: dict[str, str], owners: dict[int, str], by_rack: Bytes) -> int:
    return sum(
        size
        for bundle, each in by_rack.items()
        for rack, size in each.items()
        if rack and rack != racks[owners[bundle]]
    )


def load_of(racks: dict[str, str], owners: dict[int, str], loads: dict[int, int]) -> dict[str, int]:
    found = dict.fromkeys(racks, 0)
    for bundle, owner in owners.items():
        found[owner] += loads.get(bundle, 0)
    return found


def too_busy(racks: dict[str, str], owners: dict[int, str], loads: dict[int, int]) -> list[int]:
    """Return the loads of the brokers that are to be relieved, in descending order."""
    load = load_of(racks, owners, loads)
    mean = sum(load.values()) / len(racks)
    return sorted((each for each in load.values() if each > (1 + EXCESS_MIN) * mean), reverse=True)


def near_of(racks: dict[str, str], owners: dict[int, str], loads: dict[int, int], by_rack: Bytes) -> Relief | None:
    """Return the move of the first broker that has one: only one at a time begins."""
    moves = (nearer(me, racks, owners, loads, by_rack, 1) for me in sorted(racks))
    return next((move for move in moves if move is not None), None)


@given(views())
def test_a_move_lets_clearly_fewer_bytes_cross_and_fills_no_broker(
    view: tuple[dict[str, str], dict[int, str], dict[int, int], Bytes],
) -> None:
    racks, owners, loads, by_rack = view
    move = near_of(racks, owners, loads, by_rack)
    if move is None:  # as for many views
        return
    after = owners | {move.bundle: move.broker}
    saved = crossing(racks, owners, by_rack) - crossing(racks, after, by_rack)
    assert saved >= GAIN_OF_BYTES_MIN * sum(by_rack[move.bundle].values())
    assert racks[move.broker] not in ("", racks[owners[move.bundle]])
    load = load_of(racks, after, loads)
    assert load[move.broker] <= FILLED_MAX * sum(load.values()) / len(racks)
    least, most = bounds(len(owners) - 1, len(racks))
    counted = Counter(owner for bundle, owner in after.items() if bundle)
    assert counted[move.broker] <= most
    assert counted[owners[move.bundle]] >= least
    assert move.bundle != 0
    assert loads[move.bundle], "an idle bundle stays"
    back = nearer(move.broker, racks, after, loads, by_rack, 1)
    assert back is None or back.bundle != move.bundle, "it does not leave the rack of most of its bytes"


@given(views())
def test_with_steady_bytes_it_comes_to_rest_and_never_returns(
    view: tuple[dict[str, str], dict[int, str], dict[int, int], Bytes],
) -> None:
    """Placement by count, relief of busy brokers, and moves to racks do not undo one another."""
    racks, owners, loads, by_rack = view
    seen = [owners]
    for _ in range(STEPS_MAX):
        after = place(owners, racks, owners, loads, by_rack=True)
        if after == owners and (move := relief(racks, owners, loads)) is not None:
            after = owners | {move.bundle: move.broker}
            assert too_busy(racks, after, loads) < too_busy(racks, owners, loads)
        elif after == owners and (move := near_of(racks, owners, loads, by_rack)) is not None:
            after = owners | {move.bundle: move.broker}
            assert crossing(racks, after, by_rack) < crossing(racks, owners, by_rack)
            assert too_busy(racks, after, loads) <= too_busy(racks, owners, loads)
        if after == owners:
            break
        assert after not in seen
        seen.append(after)
        owners = after
    assert place(owners, racks, owners, loads, by_rack=True) == owners
    assert near_of(racks, owners, loads, by_rack) is None


def test_bundles_whose_programs_are_in_one_rack_gather_there() -> None:
    """Three racks of one broker, with ten bundles each, whose bytes are of any rack: as many cross as room allows."""
    racks = {"a": "east", "b": "west", "c": "south"}
    owners = {bundle: "abc"[bundle % 3] for bundle in range(1, 31)}
    by_rack = {bundle: {["east", "west", "south"][bundle // 3 % 3]: 1000} for bundle in owners}
    loads = dict.fromkeys(owners, 100)
    before = crossing(racks, owners, by_rack)
    while (move := near_of(racks, owners, loads, by_rack)) is not None:
        owners |= {move.bundle: move.broker}
    assert before >= 19_000
    assert crossing(racks, owners, by_rack) <= 1000
    load = load_of(racks, owners, loads)
    assert max(load.values()) <= (1 + EXCESS_MIN) * 1000


def test_a_bundle_with_equal_bytes_of_two_racks_rests() -> None:
    racks, owners, loads = {"a": "east", "b": "west"}, {1: "a", 2: "a", 3: "b", 4: "b"}, dict.fromkeys(range(1, 5), 10)
    loads |= {2: 200, 3: 200, 4: 10}
    assert nearer("a", racks, owners, loads, {1: {"east": 500, "west": 500}}, 1) is None
    assert nearer("a", racks, owners, loads, {1: {"east": 380, "west": 620}}, 1) is None, "a gain of 24 %"
    assert nearer("a", racks, owners, loads, {1: {"east": 370, "west": 630}}, 1) == Relief(1, "b")
    assert nearer("a", racks, owners, loads, {1: {"west": 630, "": 2000}}, 1) is None, "most programs name no rack"
    assert nearer("a", racks, owners, loads, {1: {"west": 630}}, 631) is None, "too few bytes for a takeover"
    assert nearer("a", racks, owners, loads, {1: {"north": 900}}, 1) is None, "no broker is there"
    assert nearer("a", racks, owners, {2: 200, 3: 200}, {1: {"west": 900}}, 1) is None, "an idle bundle"
    assert nearer("a", {"a": "", "b": "west"}, owners, loads, {1: {"west": 900}}, 1) is None, "not known to cross"


def test_bundles_by_rack_stay_only_while_the_counts_are_within_bounds() -> None:
    loads = dict.fromkeys(range(1, 13), 100)
    uneven = {bundle: "a" if bundle <= 5 else "b" if bundle <= 9 else "c" for bundle in loads}
    assert place(uneven, "abc", uneven, loads, by_rack=True) == uneven
    assert place(uneven, "abc", uneven, loads) != uneven
    assert place(uneven, "abc", uneven, {}, by_rack=True) != uneven, "nothing is busy"
    most = {bundle: "a" if bundle <= 8 else "b" if bundle <= 10 else "c" for bundle in loads}
    assert place(most, "abc", most, loads, by_rack=True) != most
    assert sorted(Counter(place(uneven, "abcd", uneven, loads, by_rack=True).values()).values()) == [3, 3, 3, 3]


def test_brokers_begin_one_after_the_other() -> None:
    wish, owners = {"a": Relief(1, "c"), "b": Relief(2, "c")}, {1: "a", 2: "b", 3: "c", 4: "a"}
    waits = {name: Patience(name) for name in wish}

    def over(now: float, owners: dict[int, str] = owners) -> list[str]:
        return [name for name, patience in waits.items() if patience.is_over(wish[name], owners, now, 60.0, 4.0)]

    assert over(0.0) == []
    assert over(59.0) == []
    assert over(60.0) == ["a"]
    assert over(63.0) == ["a"]
    wish["a"] = Relief(4, "c")
    assert over(63.2) == ["a"], "another bundle has more bytes by now"
    moved = owners | {1: "c"}
    assert over(63.5, moved) == [], "an owner has changed"
    assert over(125.0, moved) == ["a"]
    assert not waits["b"].is_over(None, moved, 130.0, 60.0, 4.0)
    assert over(131.0, moved) == ["a"], "b begins anew"
    assert over(195.0, moved) == ["a", "b"]


def test_a_broker_that_joins_many_gets_a_bundle_although_bundles_follow_their_bytes() -> None:
    owners = {bundle: f"b{bundle % 24}" for bundle in range(1, 49)}
    loads = dict.fromkeys(owners, 100)
    wanted = place(range(49), {*owners.values(), "added"}, owners | {0: "b0"}, loads, by_rack=True)
    assert "added" in wanted.values()

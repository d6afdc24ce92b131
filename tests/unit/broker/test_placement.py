"""Placement: balanced, the same everywhere, and as still as the balance allows."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ledgermq_broker.cluster.placement.bundles import place

brokers = st.lists(st.text("abcdef0123", min_size=1, max_size=6), min_size=1, max_size=8, unique=True)
counts = st.integers(2, 40)


def loads(wanted: dict[int, str], live: list[str]) -> list[int]:
    counted = Counter(broker for bundle, broker in wanted.items() if bundle)
    return [counted[broker] for broker in live]


@given(brokers, counts, st.data())
def test_loads_differ_by_one_at_most_and_every_bundle_has_a_living_owner(
    live: list[str], count: int, data: st.DataObject
) -> None:
    owners = data.draw(st.dictionaries(st.integers(0, count - 1), st.sampled_from([*live, "gone"])))
    wanted = place(range(count), live, owners)
    assert sorted(wanted) == list(range(count))
    assert set(wanted.values()) <= set(live)
    assert max(loads(wanted, live)) - min(loads(wanted, live)) <= 1


@given(brokers, counts, st.data())
def test_the_answer_is_a_fixed_point(live: list[str], count: int, data: st.DataObject) -> None:
    """Once every broker has what is wanted, nothing moves any more, in whatever order the brokers are
    seen.
    """
    owners = data.draw(st.dictionaries(st.integers(0, count - 1), st.sampled_from(live)))
    wanted = place(range(count), live, owners)
    assert place(range(count), list(reversed(live)), wanted) == wanted


@given(brokers, counts)
def test_a_death_moves_only_what_the_dead_broker_had(live: list[str], count: int) -> None:
    before = place(range(count), live, {})
    dead, rest = live[0], live[1:]
    if rest:
        after = place(range(count), rest, {bundle: owner for bundle, owner in before.items() if owner != dead})
        assert all(after[bundle] == owner for bundle, owner in before.items() if owner != dead)


@given(brokers, counts)
def test_a_new_broker_takes_its_share_and_no_bundle_moves_between_old_ones(live: list[str], count: int) -> None:
    before = place(range(count), live, {})
    after = place(range(count), [*live, "newcomer"], before)
    moved = {bundle for bundle in before if after[bundle] != before[bundle]}
    assert all(after[bundle] == "newcomer" for bundle in moved)
    assert len(moved) == (count - 1) // (len(live) + 1) or len(moved) == (count - 1) // (len(live) + 1) + 1


def test_without_brokers_nothing_is_wanted() -> None:
    assert place(range(5), [], {1: "gone"}) == {}


def test_metadata_costs_its_owner_no_user_bundle() -> None:
    wanted = place(range(5), ["a", "b"], {0: "a", 1: "a", 2: "a", 3: "b", 4: "b"})
    assert wanted == {0: "a", 1: "a", 2: "a", 3: "b", 4: "b"}

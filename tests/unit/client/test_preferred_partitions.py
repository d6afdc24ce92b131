"""Records without a key keep to the partitions in the rack of their program, unless these are few or full."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.producing.routing.choices import near
from ledgermq.client.settings.partitioner import PREFERRED_LOOKS, Keyless, KeylessPartition, Preferred
from ledgermq.sources import Sources

RULES = ["sticky", "round_robin", "random"]
FULL_NEVER = Preferred([1, 4, 7], lambda partition: False)


def chosen(rule: Keyless, partitions: int, preferred: Preferred | None, avoided: set[int], count: int) -> Counter[int]:
    """Return how many batches of one record go where."""
    keyless, found = KeylessPartition(Sources(random=random.Random(1)), rule), Counter[int]()
    for _ in range(count):
        place = keyless.get(partitions, avoided, preferred)
        found[place] += 1
        keyless.leave(place, partitions, preferred)
    return found


by_rule = pytest.mark.parametrize("rule", RULES)


@by_rule
def test_only_preferred_partitions_are_chosen_and_evenly(rule: Keyless) -> None:
    found = chosen(rule, 9, FULL_NEVER, set(), 3000)
    assert found.keys() == {1, 4, 7}
    assert min(found.values()) > 800


@by_rule
def test_one_preferred_partition_gets_all(rule: Keyless) -> None:
    assert chosen(rule, 9, Preferred([8], lambda partition: False), {0, 1}, 50) == {8: 50}


@by_rule
def test_where_all_preferred_are_full_others_help(rule: Keyless) -> None:
    found = chosen(rule, 9, Preferred([1, 4], lambda partition: partition in (1, 4)), {3}, 900)
    assert found.keys() >= {0, 2, 5, 6, 7, 8}
    assert 3 not in found


@by_rule
def test_where_all_are_full_preferred_are_chosen(rule: Keyless) -> None:
    assert chosen(rule, 9, Preferred([1, 4], lambda partition: True), set(), 100).keys() == {1, 4}


@by_rule
def test_a_full_one_gets_nothing_while_another_has_room(rule: Keyless) -> None:
    found = chosen(rule, 9, Preferred([1, 4, 7], lambda partition: partition == 1), set(), 1000)
    assert found.keys() == {4, 7}


def test_a_sticky_batch_goes_to_another_preferred_partition_than_the_one_before() -> None:
    keyless = KeylessPartition(Sources(random=random.Random(1)))
    for _ in range(100):
        before = keyless.get(9, frozenset(), FULL_NEVER)
        assert keyless.get(9, frozenset(), FULL_NEVER) == before, "until its batch is complete"
        keyless.leave(before, 9, FULL_NEVER)
        assert keyless.get(9, frozenset(), FULL_NEVER) != before


def test_few_looks_are_made_for_a_choice_among_many() -> None:
    looks = 0

    def is_full(partition: int) -> bool:
        nonlocal looks
        looks += 1
        return True

    many = Preferred(range(10_000), is_full)
    keyless = KeylessPartition(Sources(random=random.Random(1)), "round_robin")
    keyless.get(30_000, frozenset(), many)
    assert looks == PREFERRED_LOOKS + 1


@given(st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=1, max_size=40), st.sampled_from(["a", "b", "", "z"]))
def test_near_places_are_all_of_the_rack_or_none(racks: list[str], rack: str) -> None:
    found = near(rack, racks)
    there = [place for place, each in enumerate(racks) if each == rack]
    assert found in ([], there)
    if not rack or rack not in racks:
        assert found == []
    elif len(there) * len({*racks} - {""}) >= len(racks):
        assert found == there, "as many as a rack has on the average"


def test_a_rack_with_too_few_partitions_is_not_preferred() -> None:
    assert near("a", ["a", *["b"] * 9]) == [], "five times what the others get"
    assert near("a", ["a", *["b"] * 3]) == [0]
    assert near("a", ["a"]) == [0]
    assert near("a", ["a", "b", "c"]) == [0]
    assert near("a", [""] * 3) == [], "brokers of an earlier release"

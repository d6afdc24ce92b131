"""Levels of priority: which partitions they have, and whose turn it is."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import InvalidRecord
from ledgermq.protocol.levels import (
    Turns,
    check_priority,
    level_of,
    levels_of,
    nearest_level,
    partition_at,
    partitions_in,
    places_of,
)


@given(st.integers(1, 10), st.integers(0, 60))
def test_each_partition_is_at_one_place_of_one_level(levels: int, more: int) -> None:
    partitions = levels + more
    found = [
        partition_at(place, level, levels)
        for level in range(levels)
        for place in range(partitions_in(level, levels, partitions))
    ]
    assert sorted(found) == list(range(partitions))
    assert all(level_of(partition_at(0, level, levels), levels) == level for level in range(levels))
    sizes = [partitions_in(level, levels, partitions) for level in range(levels)]
    assert max(sizes) - min(sizes) <= 1


def test_places_of_partitions_to_avoid() -> None:
    assert places_of({0, 1, 4, 5, 9}, 1, 4) == {0, 1, 2}
    assert places_of({0, 1, 4, 5, 9}, 3, 4) == set()


def test_levels_of_settings() -> None:
    assert [levels_of(found) for found in ({}, {"priority.levels": "3"}, {"priority.levels": "0"})] == [1, 3, 1]
    assert levels_of({"priority.levels": "many"}) == 1


@pytest.mark.parametrize("wrong", [-1, 10, True, 1.0, "1", None])
def test_a_priority_is_a_whole_number(wrong: object) -> None:
    with pytest.raises(InvalidRecord, match="priority must be a whole number from 0 to 9"):
        check_priority(wrong)


def test_a_header_of_another_producer_means_the_nearest_level() -> None:
    assert [nearest_level(text, 3) for text in (b"0", b"2", b"7")] == [0, 2, 2]
    assert [nearest_level(text, 3) for text in (b"", b"x", b"-1", b"9" * 5000)] == [0, 0, 0, 0]


@given(st.lists(st.integers(1, 64), max_size=300), st.integers(2, 5))
def test_levels_with_messages_share_by_their_weights(pieces: list[int], levels: int) -> None:
    """What two levels took, each divided by its weight, differs by one piece of each at most."""
    turns, took = Turns(), Counter[int]()
    for records in pieces:
        level = turns.first(range(levels))
        turns.took(level, records)
        took[level] += records
        virtual = [took[each] / 2**each for each in range(levels)]
        for one in range(levels):
            for other in range(levels):
                assert virtual[one] - virtual[other] <= 64 / 2**one + 64 / 2**other


@given(st.lists(st.tuples(st.integers(1, 64), st.sets(st.integers(0, 4), min_size=1)), max_size=200))
def test_a_level_that_has_messages_is_not_left_out_for_long(steps: list[tuple[int, set[int]]]) -> None:
    """While level 0 has messages all the time, the others take at most what their weights allow and a piece each."""
    turns, others, mine = Turns(), 0, 0
    for records, filled in steps:
        level = turns.first(filled | {0})
        assert level in filled | {0}
        turns.took(level, records)
        if level == 0:
            mine += records
        else:
            others += records
        assert others <= (2 + 4 + 8 + 16) * (mine + 64) + 4 * 64


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 64))), st.sets(st.integers(0, 4), min_size=1))
def test_the_order_begins_with_the_level_whose_turn_it_is(taken: list[tuple[int, int]], levels: set[int]) -> None:
    turns = Turns()
    for level, records in taken:
        turns.took(level, records)
    order = turns.order(levels)
    assert sorted(order) == sorted(levels)
    assert order[0] == turns.first(levels)


def test_a_level_that_was_empty_does_not_make_up_for_it() -> None:
    turns = Turns()
    for _ in range(100):
        turns.took(turns.first([1]), 10)
    taken = [level for _ in range(30) if turns.took(level := turns.first([0, 1]), 10) is None]
    assert 9 <= taken.count(0) <= 11

"""Messages that a member of a queue group has leased ahead: which one its program gets next."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ledgermq.client.queues.leased import LeasedAhead


def filled(**levels: int) -> Any:
    ahead: Any = LeasedAhead("", None)
    for name, count in levels.items():
        level = int(name.removeprefix("l"))
        ahead.add(level, [(level, number) for number in range(count)])
    return ahead


def test_one_level_is_a_queue() -> None:
    ahead = filled(l0=3)
    assert [ahead.take(()) for _ in range(4)] == [(0, 0), (0, 1), (0, 2), None]
    assert not ahead


def test_levels_share_by_their_weights_and_each_keeps_its_order() -> None:
    ahead = filled(l0=100, l1=100, l2=100)
    taken = [ahead.take(()) for _ in range(70)]
    assert Counter(level for level, _ in taken) == {2: 40, 1: 20, 0: 10}
    for level in range(3):
        assert [number for which, number in taken if which == level] == list(range({2: 40, 1: 20, 0: 10}[level]))


def test_nothing_is_taken_while_it_is_the_turn_of_a_level_that_is_coming() -> None:
    ahead = filled(l0=10, l1=2)
    assert [ahead.take({1}) for _ in range(3)] == [(1, 0), (0, 0), (1, 1)]
    assert ahead.take({1}) is None, "it is the turn of level 1, which has nothing here"
    assert ahead.full() == {0}
    assert ahead.take(()) == (0, 1), "out of turn, when nothing is coming"
    ahead.add(1, [(1, 2)])
    assert ahead.take(()) == (1, 2)
    assert len(list(ahead)) == 8
    ahead.clear()
    assert ahead.take({1}) is None

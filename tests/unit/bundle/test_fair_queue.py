"""Senders take turns by bytes; one sender's entries, and the broker's own, keep their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ledgermq_broker.bundle.shared.fair_queue import FREE_TIMES, Entry, FairQueue, SharedRoom

APPEND: Any = object()
"""The queue only counts them."""
SIZE_MAX = 50


def entry(sender: str, size_bytes: int = 1, arrived_s: float = 0.0) -> Entry:
    return Entry([APPEND], size_bytes, sender, arrived_s)


def queue_of(entries: Sequence[Entry]) -> FairQueue:
    queue = FairQueue()
    for each in entries:
        queue.push(each)
    return queue


def emptied(queue: FairQueue) -> list[Entry]:
    found = []
    while queue:
        first = queue.first()
        found.append(queue.pop())
        assert found[-1] is first
    return found


SENDERS = st.sampled_from(["", "", "a", "b", "c"])
STEPS = st.lists(st.one_of(st.none(), st.tuples(SENDERS, st.integers(1, SIZE_MAX))), max_size=60)
"""None takes an entry, if there is one."""


@given(STEPS)
def test_entries_of_a_sender_and_those_around_the_brokers_own_keep_their_order(
    steps: list[tuple[str, int] | None],
) -> None:
    queue, pushed, taken = FairQueue(), [], []
    for number, step in enumerate(steps):
        if step is not None:
            pushed.append(entry(*step, arrived_s=float(number)))
            queue.push(pushed[-1])
        elif queue:
            taken.append(queue.pop())
        waiting = [each for each in pushed if each not in taken]
        assert queue.size_bytes == sum(each.size_bytes for each in waiting)
        assert queue.batches == len(waiting)
        assert queue.oldest_s == min((each.arrived_s for each in waiting), default=None)
    taken += emptied(queue)
    assert Counter(map(id, taken)) == Counter(map(id, pushed))
    places = {id(each): place for place, each in enumerate(taken)}
    for at, earlier in enumerate(pushed):
        for later in pushed[at + 1 :]:
            if earlier.sender == later.sender or not earlier.sender or not later.sender:
                assert places[id(earlier)] < places[id(later)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, SIZE_MAX)), min_size=3, max_size=90))
def test_senders_that_have_something_queued_get_the_same_bytes(steps: list[tuple[str, int]]) -> None:
    queue = queue_of([entry(*step) for step in steps])
    left, got = Counter(sender for sender, _ in steps), Counter({sender: 0 for sender, _ in steps})
    while queue and all(left[sender] for sender in got):
        taken = queue.pop()
        left[taken.sender] -= 1
        got[taken.sender] += taken.size_bytes
        assert max(got.values()) - min(got.values()) <= 2 * SIZE_MAX


def test_a_sender_that_comes_later_is_next_and_has_no_credit_for_its_absence() -> None:
    queue = queue_of([entry("flood", 10) for _ in range(100)])
    for _ in range(50):
        queue.pop()
    for _ in range(3):
        queue.push(entry("calm", 10))
    assert [queue.pop().sender for _ in range(6)].count("calm") == 3
    assert {each.sender for each in emptied(queue)} == {"flood"}


@given(st.integers(1, 1000), st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(1, 100)), max_size=60))
def test_a_sender_leaves_room_for_others_and_the_broker_may_fill_it(bound: int, steps: list[tuple[str, int]]) -> None:
    room, held = SharedRoom(), Counter[str]()
    for sender, amount in steps:
        free = bound - room.taken
        fits = amount <= free and (not sender or held[sender] + amount <= FREE_TIMES * free)
        assert room.has_room(amount, bound, sender) == fits
        if fits:
            room.take(amount, sender)
            held[sender] += amount
        assert room.taken == held.total() <= bound
    for sender, amount in held.items():
        room.give(amount, sender)
    assert room.taken == 0
    assert room.has_room(bound, bound, "a")


def test_what_one_sender_may_hold_alone_and_beside_another() -> None:
    room = SharedRoom()
    while room.has_room(1, 900, "a"):
        room.take(1, "a")
    assert room.taken == 720
    while room.has_room(1, 900, "b"):
        room.take(1, "b")
    assert room.taken == 864

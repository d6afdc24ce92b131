"""The gateway's budget of memory, shared among principals."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ledgermq_gateway.http.limits import Held, Memory
from ledgermq_gateway.http.problems import Problem


def test_no_principal_takes_all_memory_from_others() -> None:
    """One that sent bodies and withheld their last byte held all of it, and every other call was refused."""
    memory = Memory(120)
    with ExitStack() as stack:
        alice, again, bob, carol, open_ = (stack.enter_context(memory.share(name)) for name in ("a", "a", "b", "c", ""))
        alice.take(40)
        again.take(20)
        for share in (alice, again):
            with pytest.raises(Problem, match="no memory"):
                share.take(1)
        bob.take(30)
        with pytest.raises(Problem):
            bob.take(1)
        carol.take(15)
        open_.take(15)
        with pytest.raises(Problem):
            open_.take(1)
    assert memory.held_bytes == 0
    assert not memory.held_by
    with memory.share() as one:
        one.take(120)


def test_what_is_given_back_can_be_taken_again() -> None:
    memory = Memory(100)
    for _ in range(3):
        with memory.share("a") as share:
            share.take(50)


def test_what_a_call_holds_is_given_back_from_the_last_to_the_first() -> None:
    ended: list[object] = []
    failure = ValueError("of the call")
    held = Held()
    held.add(lambda error: ended.append(("first", error)))
    held.add(lambda error: ended.append(("second", error)))
    with pytest.raises(ValueError, match="of the call"), held:
        raise failure
    assert ended == [("second", failure), ("first", failure)]


def test_an_ending_that_fails_keeps_no_other_one_from_its_turn() -> None:
    ended: list[str] = []

    def fails(error: BaseException | None) -> None:
        raise RuntimeError("of an ending")

    held = Held()
    held.add(lambda error: ended.append("first"))
    held.add(fails)
    held.add(lambda error: ended.append("last"))
    with pytest.raises(RuntimeError, match="of an ending"), held:
        pass
    assert ended == ["last", "first"]


def test_what_is_handed_on_is_given_back_by_the_other_alone() -> None:
    ended: list[str] = []
    with Held() as held:
        held.add(lambda error: ended.append("once"))
        other = held.handed_on()
    assert not ended
    with other:
        pass
    assert ended == ["once"]

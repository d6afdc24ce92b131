"""The gateway's budget of memory, shared among principals."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ledgermq_gateway.http.limits import Memory
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

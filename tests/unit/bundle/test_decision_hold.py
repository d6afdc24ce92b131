"""How decisions are held while a cut is taken (design I3, I4)."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import NotOwner, Unavailable
from ledgermq_broker.bundle.committing.decision_hold import HOLD_S, DecisionHold
from tests.virtual_time import virtual


@virtual
async def test_a_hold_ends_by_itself_and_does_not_come_back() -> None:
    hold = DecisionHold(3)
    number = hold.begin(7)
    assert hold.begin(7) == number == hold.number
    waiting = asyncio.create_task(hold.passed())
    await asyncio.sleep(HOLD_S - 0.1)
    assert (waiting.done(), hold.number) == (False, number)
    await asyncio.sleep(0.2)
    assert (waiting.done(), hold.number, hold.is_held) == (True, 0, False)
    again = hold.begin(7)
    assert again == hold.number != number, "the same cut holds again, and that is another hold"
    assert hold.is_of(7)


@virtual
async def test_one_cut_holds_at_a_time_and_ends_only_its_own_hold() -> None:
    hold = DecisionHold(3)
    hold.begin(7)
    with pytest.raises(Unavailable, match="cut 7 holds the decisions of bundle 3"):
        hold.begin(8)
    hold.end(8)
    assert hold.is_of(7)
    hold.end(7)
    hold.end(7)
    await hold.passed()
    hold.begin(8)
    await asyncio.sleep(HOLD_S / 2)
    hold.end(8)
    hold.begin(9)
    await asyncio.sleep(HOLD_S * 0.9)
    assert hold.is_of(9), "the time of an earlier hold does not count"


@virtual
async def test_a_hold_ends_with_its_term_and_none_begins_after_that() -> None:
    hold, now = DecisionHold(3), asyncio.get_running_loop().time
    hold.begin(7)
    begun_s, waiting = now(), asyncio.create_task(hold.passed())
    await asyncio.sleep(1)
    hold.close(NotOwner("bundle 3 was closed"))
    await waiting
    assert now() - begun_s == 1
    with pytest.raises(NotOwner, match="bundle 3 was closed"):
        hold.begin(7)
    assert (hold.number, hold.is_held) == (0, False)

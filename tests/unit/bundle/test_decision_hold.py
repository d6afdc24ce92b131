"""How decisions are held while a cut is taken (design I3, I4)."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import Unavailable
from ledgermq_broker.bundle.committing.decision_hold import HOLD_S, DecisionHold
from tests.virtual_time import virtual


@virtual
async def test_a_hold_ends_by_itself_and_does_not_come_back() -> None:
    hold = DecisionHold(3)
    hold.begin(7)
    hold.begin(7)
    waiting = asyncio.create_task(hold.passed())
    await asyncio.sleep(HOLD_S - 0.1)
    assert (waiting.done(), hold.is_unbroken(7)) == (False, True)
    await asyncio.sleep(0.2)
    assert (waiting.done(), hold.is_unbroken(7), hold.is_held) == (True, False, False)


@virtual
async def test_one_cut_holds_at_a_time_and_ends_only_its_own_hold() -> None:
    hold = DecisionHold(3)
    hold.begin(7)
    with pytest.raises(Unavailable, match="cut 7 holds the decisions of bundle 3"):
        hold.begin(8)
    hold.end(8)
    assert hold.is_unbroken(7)
    hold.end(7)
    hold.end(7)
    await hold.passed()
    hold.begin(8)
    await asyncio.sleep(HOLD_S / 2)
    hold.end(8)
    hold.begin(9)
    await asyncio.sleep(HOLD_S * 0.9)
    assert hold.is_unbroken(9), "the time of an earlier hold does not count"

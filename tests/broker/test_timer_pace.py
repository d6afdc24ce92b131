"""The work on timed messages of all bundles of a broker has a bounded share of the event loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from ledgermq_broker.timed.pace import REST, Pace
from tests.virtual_time import virtual

WORK_S = 0.002
TURNS = 20


@virtual
async def test_turns_of_all_bundles_are_one_at_a_time_with_rests_in_proportion() -> None:
    pace, under_way, spans = Pace(), [], []

    async def one_bundle(number: int) -> None:
        for _ in range(TURNS):
            async with pace.turn():
                assert not under_way
                under_way.append(number)
                begun_s = asyncio.get_running_loop().time()
                await asyncio.sleep(WORK_S)  # stands for work, which takes no virtual time
                spans.append((number, begun_s, asyncio.get_running_loop().time()))
                under_way.clear()

    await asyncio.gather(*(one_bundle(number) for number in range(3)))
    for (_, _, ended_s), (_, begun_s, _) in pairwise(spans):
        assert begun_s - ended_s >= REST * WORK_S * 0.999
    assert [number for number, _, _ in spans[:6]] == [0, 1, 2, 0, 1, 2], "a bundle waits for one turn of each other"


@virtual
async def test_work_that_fails_gives_its_turn_back() -> None:
    pace = Pace()
    try:
        async with pace.turn():
            raise ValueError("refused")
    except ValueError:
        pass
    async with asyncio.timeout(1), pace.turn():
        pass

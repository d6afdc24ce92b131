"""Callers that begin the same queue group in the same partition share one beginning."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import NotOwner, QuotaExceeded
from ledgermq_broker.queues.beginning import Beginnings
from ledgermq_broker.queues.state.records import ShareKey
from tests.virtual_time import virtual

KEY = ShareKey("workers", 1, 0)
MALLORY, VICTIM = 1, 2


class World:
    """`has_share`: of these principals, that begin nothing more."""

    def __init__(self, *has_share: int) -> None:
        self.has_share = has_share
        self.begun: list[int] = []
        self.is_over = False
        self.beginnings = Beginnings(self._check)

    async def begin(self, principal: int) -> None:
        async def begin() -> None:
            await asyncio.sleep(1.0)
            if principal in self.has_share:
                raise QuotaExceeded("has its share", limit="queue_partitions")
            self.begun.append(principal)

        await self.beginnings.wait(KEY, principal, begin)

    def _check(self) -> None:
        if self.is_over:
            raise NotOwner("the term is over")


@virtual
async def test_one_beginning_serves_all_callers_and_goes_on_without_the_first() -> None:
    world = World()
    first, second = (asyncio.create_task(world.begin(each)) for each in (MALLORY, VICTIM))
    await asyncio.sleep(0.5)
    assert KEY in world.beginnings
    first.cancel()
    await second
    assert (world.begun, KEY in world.beginnings) == ([MALLORY], False)
    with pytest.raises(asyncio.CancelledError):
        await first


@virtual
async def test_a_refusal_by_share_reaches_the_callers_of_that_principal_alone() -> None:
    world = World(MALLORY)
    found = await asyncio.gather(
        *(world.begin(each) for each in (MALLORY, VICTIM, MALLORY, VICTIM)), return_exceptions=True
    )
    assert [type(each) for each in found] == [QuotaExceeded, type(None), QuotaExceeded, type(None)]
    assert world.begun == [VICTIM]


@virtual
async def test_the_end_of_the_term_ends_the_wait() -> None:
    world = World()
    waiting = asyncio.create_task(world.begin(VICTIM))
    await asyncio.sleep(0.5)
    world.is_over = True
    world.beginnings.close()
    with pytest.raises(NotOwner):
        await waiting

"""Calls that wait, and that one append wakes at once, go on in turns of their callers; so do those whose time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from ledgermq.runtime.ports.turns import Turns, work_in_turns
from ledgermq_broker.bundle.reading.owned_ledger import RecordWaiters
from ledgermq_broker.bundle.shared.waiters import Waiters, one_ends
from ledgermq_broker.groups.partition import HeldHeartbeats
from ledgermq_broker.ports.grpc_server import AT_ONCE_MAX
from ledgermq_broker.transactions.coordinating.checker import HeldPolls
from ledgermq_ledger.keys import PartitionId
from tests.virtual_time import virtual

FLOOD = 200
LONG_S = 1000.0
KEY = PartitionId(7, 0)


@dataclass
class Caller:
    takes_turns_as: str


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Records:
    """Long polls and streams that wait for records of a partition."""

    def __init__(self) -> None:
        self._end = 0
        self._waiters = RecordWaiters(lambda _: self._end)

    async def wait(self, _: int) -> None:
        await self._waiters.until_grown({KEY: 0})

    async def wake(self) -> None:
        self._end = 1
        self._waiters.wake([KEY])


class Messages:
    """Long polls of queues that wait for a message that is open again."""

    def __init__(self) -> None:
        self._held = Waiters[str]()

    async def wait(self, _: int) -> None:
        await self._held.wait(["a", "b"])

    async def wake(self) -> None:
        self._held.wake(["b"])


class Checks:
    def __init__(self) -> None:
        self._held = HeldPolls()

    async def wait(self, _: int) -> None:
        assert await self._held.until("checkers", now_s() + LONG_S)

    async def wake(self) -> None:
        self._held.wake(["checkers"], FLOOD + 1)


class Heartbeats:
    def __init__(self) -> None:
        self._held = HeldHeartbeats()

    async def wait(self, number: int) -> None:
        await self._held.wait(("billing", str(number)), now_s() + LONG_S)

    async def wake(self) -> None:
        self._held.wake([("billing", str(number)) for number in range(FLOOD + 1)])


class LatePolls:
    """Polls whose time is up in the same moment."""

    def __init__(self) -> None:
        self._until_s = now_s() + 1.0

    async def wait(self, _: int) -> None:
        assert not await one_ends([asyncio.create_task(asyncio.sleep(LONG_S))], self._until_s)

    async def wake(self) -> None:
        await asyncio.sleep(1.0)


class LateChecks:
    def __init__(self) -> None:
        self._until_s = now_s() + 1.0

    async def wait(self, _: int) -> None:
        assert not await HeldPolls().until("checkers", self._until_s)

    async def wake(self) -> None:
        await asyncio.sleep(1.0)


Kind = Records | Messages | Checks | Heartbeats | LatePolls | LateChecks
KINDS: list[Callable[[], Kind]] = [Records, Messages, Checks, Heartbeats, LatePolls, LateChecks]


def called(turns: Turns, who: str, wait: Callable[[], Awaitable[None]], order: list[str]) -> asyncio.Task[None]:
    async def call() -> None:
        work_in_turns(turns, Caller(who))
        await wait()
        order.append(who)

    return asyncio.create_task(call())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("who", ["victim", ""])
@virtual
async def test_one_that_is_woken_waits_for_one_of_each_other_principal(kind: Callable[[], Kind], who: str) -> None:
    """It was woken after all of them, and came when all had begun to answer. `""`: a broker."""
    turns, order, held = Turns(at_once_max=AT_ONCE_MAX), list[str](), kind()
    calls = [called(turns, "mallory", lambda number=number: held.wait(number), order) for number in range(FLOOD)]  # type: ignore[misc]
    calls.append(called(turns, who, lambda: held.wait(FLOOD), order))
    await asyncio.sleep(0.5)
    assert not order
    await held.wake()
    await asyncio.gather(*calls)
    assert order.index(who) <= 2
    assert len(order) == FLOOD + 1
    assert turns.waiting == 0


@pytest.mark.parametrize("kind", [Records, Messages, Checks, Heartbeats])
@virtual
async def test_a_new_call_waits_for_one_of_those_that_are_woken(kind: Callable[[], Kind]) -> None:
    turns, order, held = Turns(at_once_max=AT_ONCE_MAX), list[str](), kind()
    calls = [called(turns, "mallory", lambda number=number: held.wait(number), order) for number in range(FLOOD)]  # type: ignore[misc]
    await asyncio.sleep(0.5)
    await held.wake()
    for _ in range(4):
        await asyncio.sleep(0)
    turns.came("victim")
    await turns.begin("victim", is_new=True)
    assert len(order) <= 10, "without turns all of them"
    await asyncio.gather(*calls)


@virtual
async def test_a_poll_that_ends_while_it_waits_for_its_turn_leaves_nothing_behind() -> None:
    turns, order, held = Turns(at_once_max=AT_ONCE_MAX), list[str](), Waiters[str]()
    calls = [called(turns, "mallory", lambda: held.wait(["a"]), order) for _ in range(FLOOD)]
    await asyncio.sleep(0.5)
    held.wake(["a"])
    while not turns.waiting:
        await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert turns.waiting == 0
    assert held.places == []
    assert len(order) < FLOOD
    await turns.begin("victim")


@virtual
async def test_all_that_are_held_go_on_at_the_end_and_no_further_one_is_held() -> None:
    held = Waiters[str]()
    calls = [asyncio.create_task(held.wait([place])) for place in ("a", "b", "b")]
    await asyncio.sleep(0.5)
    held.close()
    await asyncio.gather(*calls)
    await held.wait(["a"])
    assert held.places == []


@virtual
async def test_so_many_of_a_place_are_woken_in_the_order_of_their_arrival() -> None:
    held, order = Waiters[str](), list[int]()

    async def call(number: int) -> None:
        await held.wait(["a"])
        order.append(number)

    calls = [asyncio.create_task(call(number)) for number in range(5)]
    await asyncio.sleep(0.5)
    held.wake(["a"], 2)
    await asyncio.sleep(0.5)
    assert order == [0, 1]
    held.close()
    await asyncio.gather(*calls)

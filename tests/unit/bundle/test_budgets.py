"""The budget for answers: who gets room, who waits, what becomes of a reader that takes nothing,
and that all of it comes back.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.buffers import KIB, MIB
from ledgermq_broker.bundle.shared.answer_pace import FAST_AFTER_BYTES, FIRST_BYTES, SLOW_S, Standing
from ledgermq_broker.bundle.shared.budgets import CALLER, COPIES, AnswerBudget, AnswerReader, Caller
from tests.virtual_time import VirtualTest, virtual, virtual_in

BYTES_MAX = 64 * MIB
ANSWER = MIB


def in_budget(bytes_max: int = BYTES_MAX) -> VirtualTest:
    return virtual_in(lambda: nullcontext(AnswerBudget(bytes_max)), "budget")


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Line:
    """A connection with one reader, whose peer takes answers as the test says."""

    def __init__(self, budget: AnswerBudget, name: str, *, once: bool = False, urgent: bool = False) -> None:
        self.cut_at_s: float | None = None
        self.call: asyncio.Task[None] | None = None
        self.caller = Caller(name, self._cut)
        before = CALLER.set(self.caller)
        self.reader: AnswerReader = budget.reader(once=once, urgent=urgent)
        CALLER.reset(before)
        self.answers = 0

    def _cut(self) -> None:
        """As gRPC does: the calls of the connection end, and say so."""
        self.cut_at_s = now_s()
        if self.call is not None:
            self.call.cancel()
        asyncio.get_running_loop().call_soon(self.caller.ended)

    async def answer(self, seconds: float, size: int = ANSWER, within_s: float = 3600.0) -> bool:
        if not await self.reader.take(size, now_s() + within_s):
            return False
        assert self.reader.fit(size)
        with self.reader.sent():
            await asyncio.sleep(seconds)
        self.answers += 1
        return True

    def never_taken(self) -> None:
        self.call = asyncio.create_task(self._stuck())

    async def _stuck(self) -> None:
        await self.answer(10**9)

    async def become_fast(self) -> None:
        for _ in range(FAST_AFTER_BYTES // ANSWER):
            await self.answer(0.01)
        assert self.reader.standing is Standing.FAST


@in_budget()
async def test_readers_that_take_nothing_hold_no_more_than_the_budget(budget: AnswerBudget) -> None:
    lines = [Line(budget, f"slow {number}") for number in range(200)]
    for line in lines:
        line.never_taken()
    await asyncio.sleep(1.5)
    assert BYTES_MAX * 0.7 < budget.taken <= BYTES_MAX * 3 / 4
    assert budget.taken == sum(budget.held.values()) == budget.held[Standing.SLOW]
    assert budget.waiting == 200 - budget.taken // (ANSWER * COPIES)
    for line in lines:
        line.caller.ended()
    assert budget.taken == 0


@virtual
async def test_a_fast_reader_keeps_its_rate_beside_a_thousand_that_take_nothing() -> None:
    async def rate(slow: int) -> int:
        budget = AnswerBudget(BYTES_MAX)
        fast = Line(budget, "fast")
        await fast.become_fast()
        for number in range(slow):
            Line(budget, f"slow {number}").never_taken()
        fast.answers, until_s = 0, now_s() + 20
        while now_s() < until_s:
            assert fast.reader.room(4 * MIB) >= 4 * MIB, "its answers stay large"
            await fast.answer(0.01)
        return fast.answers

    assert await rate(1000) == await rate(0)


@in_budget()
async def test_answers_become_smaller_the_more_readers_there_are(budget: AnswerBudget) -> None:
    one = Line(budget, "one")
    assert one.reader.room(4 * MIB) == FIRST_BYTES
    for number in range(63):
        assert await Line(budget, f"other {number}").reader.take(64 * KIB, now_s())
    assert one.reader.room(4 * MIB) == BYTES_MAX // 4 // 64 // COPIES == 128 * KIB
    assert one.reader.room(10_000) == 10_000, "no more than was asked for"
    for _ in range(9):
        assert await Line(budget, "one client").reader.take(64 * KIB, now_s())
    assert one.reader.room(4 * MIB) > 120 * KIB, "the other connection is one, however many readers it has"
    assert Line(budget, "one client").reader.room(4 * MIB) == 64 * KIB, "but not smaller than this"


@in_budget()
async def test_an_answer_follows_what_its_reader_took(budget: AnswerBudget) -> None:
    line = Line(budget, "a")
    rooms = []
    for seconds in (*(0.01,) * 16, 0.5, 2.0, *(0.01,) * 4):
        room = line.reader.room(32 * MIB)
        rooms.append(room)
        await line.answer(seconds, room)
    assert rooms[:4] == [MIB, MIB, 2 * MIB, 2 * MIB]
    assert rooms[15] == 4 * MIB, "no more than its connection's share"
    assert rooms[17] == rooms[16], "what it takes in half a second"
    assert rooms[18] == rooms[17] // 4
    assert line.reader.standing is Standing.NEW


@in_budget()
async def test_a_waiting_reader_is_served_in_turn_and_keeps_its_place(budget: AnswerBudget) -> None:
    """A reader stops to wait now and then, to tell its caller that it does; it loses nothing by
    that.
    """

    holders = [Line(budget, f"holder {number}", once=True) for number in range(8)]
    for holder in holders:
        assert await holder.reader.take(3 * MIB, now_s())
    served: list[int] = []

    async def wait(number: int) -> None:
        line = Line(budget, f"waiting {number}")
        while not await line.reader.take(3 * MIB, now_s() + 0.7 + number / 10):
            pass
        served.append(number)
        await asyncio.sleep(0.1)
        line.reader.leave()

    waiting = []
    for number in range(5):
        waiting.append(asyncio.create_task(wait(number)))
        await asyncio.sleep(0.01)
    await asyncio.sleep(5)
    assert budget.waiting == 5
    assert not served
    for holder in holders:
        holder.reader.leave()
    await asyncio.gather(*waiting)
    assert served == [0, 4, 1, 3, 2], (
        "the oldest, and every other time the newest: most of those before it may never take anything"
    )
    assert budget.taken == 0


@in_budget()
async def test_a_large_answer_is_not_overtaken_for_ever_by_small_ones(budget: AnswerBudget) -> None:
    small = [Line(budget, f"small {number}") for number in range(40)]

    async def go_on(line: Line) -> None:
        with line.reader:
            while True:
                await line.answer(0.05)

    tasks = [asyncio.create_task(go_on(line)) for line in small]
    await asyncio.sleep(1)
    large = Line(budget, "large", once=True)
    async with asyncio.timeout(2):
        await large.answer(0.05, 20 * MIB)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert budget.taken == 0


@in_budget(bytes_max=16 * MIB)
async def test_an_answer_larger_than_the_budget_goes_alone(budget: AnswerBudget) -> None:
    other, large = Line(budget, "other"), Line(budget, "large")
    assert await other.reader.take(1, now_s())
    assert not await large.reader.take(32 * MIB, now_s() + 1)
    other.reader.leave()
    assert await large.reader.take(32 * MIB, now_s() + 1)


@in_budget()
async def test_one_connection_does_not_take_what_is_for_others(budget: AnswerBudget) -> None:
    many = [Line(budget, "one client") for _ in range(50)]
    for line in many:
        line.never_taken()
    await asyncio.sleep(0)
    assert budget.taken <= BYTES_MAX / 8
    other = Line(budget, "another client")
    assert await other.answer(0.01, within_s=0)


@in_budget()
async def test_while_others_wait_a_connection_that_takes_nothing_is_broken_and_no_sooner(budget: AnswerBudget) -> None:
    stuck = [Line(budget, f"stuck {number}") for number in range(24)]
    for line in stuck:
        line.never_taken()
    await asyncio.sleep(3600)
    assert all(line.cut_at_s is None for line in stuck), "no other reader wanted the room"
    begun_s = now_s()
    assert await Line(budget, "new").answer(0.01)
    assert now_s() - begun_s < 1
    cut = sum(line.cut_at_s is not None for line in stuck)
    assert 0 < cut <= 24 - 16 + 1, "as many as slow readers held above their half"
    assert cut == budget.cuts


@in_budget()
async def test_a_line_that_is_slow_but_takes_its_answer_is_left_alone(budget: AnswerBudget) -> None:
    lines = [Line(budget, f"slow {number}") for number in range(40)]
    for _ in range(5):
        await asyncio.gather(*(line.answer(4.0) for line in lines))
    assert budget.cuts == 0
    assert all(line.answers == 5 for line in lines)
    assert budget.taken == 0


@in_budget()
async def test_an_urgent_answer_never_waits(budget: AnswerBudget) -> None:
    for number in range(200):
        Line(budget, f"slow {number}").never_taken()
    await asyncio.sleep(1.5)
    assert await Line(budget, "a broker that follows topics", urgent=True).answer(0.01, within_s=0)


@in_budget()
async def test_a_smaller_bound_holds_from_now_on(budget: AnswerBudget) -> None:
    lines = [Line(budget, f"line {number}") for number in range(20)]
    for line in lines[:10]:
        assert await line.reader.take(ANSWER, now_s())
    budget.take_bound(16 * MIB)
    assert not await lines[10].reader.take(ANSWER, now_s() + 0.5)
    for line in lines[:9]:
        line.reader.leave()
    assert await lines[10].reader.take(ANSWER, now_s())


@pytest.mark.parametrize("where", ["waiting", "collecting", "in line"])
@in_budget()
async def test_a_reader_that_goes_away_gives_everything_back(budget: AnswerBudget, where: str) -> None:
    blocker = Line(budget, "blocker", once=True)
    if where == "waiting":
        assert await blocker.reader.take(BYTES_MAX, now_s())
    line = Line(budget, "line")

    async def call() -> None:
        with line.reader:
            await line.reader.take(ANSWER, now_s() + 100)
            if where == "collecting":
                await asyncio.sleep(100)
            with line.reader.sent():
                await asyncio.sleep(100)

    task = asyncio.create_task(call())
    await asyncio.sleep(SLOW_S * 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    blocker.reader.leave()
    line.caller.ended()
    assert (budget.taken, budget.waiting, budget.in_line_bytes) == (0, 0, 0)
    assert not any(budget.held.values())


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(16, 64))
@virtual
async def test_readers_stay_within_the_bound_and_give_all_of_it_back(seed: int, mebibytes: int) -> None:
    """Readers of all speeds, some cancelled at any moment: never above the bound, every one that
    stays is served, nothing is left.
    """
    # Not hypothesis' own: it ends an example by an exception, which one of the tasks would take.
    chance = random.Random(seed)
    budget = AnswerBudget(mebibytes * MIB)
    largest = budget.bytes_max // 8 // COPIES

    async def read(line: Line, count: int, pauses_s: tuple[float, ...]) -> None:
        with line.reader:
            for _ in range(count):
                asked = chance.randint(1, largest)
                while not await line.reader.take(asked, now_s() + chance.random()):
                    pass
                found = chance.randint(0, largest)
                if line.reader.fit(found):
                    with line.reader.sent():
                        await asyncio.sleep(chance.choice(pauses_s))
                assert budget.taken == sum(budget.held.values()) <= budget.bytes_max
                line.reader.rest()
                line.answers += 1

    paces = ((0.0, 0.01, 0.5, 1.5), (0.0, 0.01, 0.5, 1.5, 4.0))
    lines = [Line(budget, f"line {number % 2} {chance.randint(0, 4)}") for number in range(30)]
    tasks = [asyncio.create_task(read(line, 6, paces[number % 2])) for number, line in enumerate(lines)]
    leaving = chance.sample(range(30), 10)
    for number in leaving:
        await asyncio.sleep(chance.random())
        tasks[number].cancel()
    async with asyncio.timeout(3600):
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [result for result in ended if isinstance(result, Exception)] == []
    stayed = [number for number, line in enumerate(lines) if number not in leaving and line.cut_at_s is None]
    assert all(lines[number].answers == 6 for number in stayed)
    assert {*range(0, 30, 2)} - {*leaving} <= {*stayed}, "an answer that stands for four seconds may be cut, no other"
    assert (budget.taken, budget.waiting, budget.in_line_bytes) == (0, 0, 0)
    assert not any(budget._at_work.values())
    assert not budget._of_connection

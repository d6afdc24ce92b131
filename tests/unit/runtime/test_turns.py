"""Turns of callers, judged by the order in which calls begin: no time is measured."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from ledgermq.errors import ResourceExhausted
from ledgermq.runtime.ports.turns import ACTIVE_S, PASSED_MAX, Turns, give_way, work_in_turns
from tests.virtual_time import virtual

WAIT_S = 600.0


class Callers:
    """Notes which calls have begun, in their order."""

    def __init__(self, places: int) -> None:
        self.turns = Turns(places)
        self.begun: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def call(self, caller: str, done: asyncio.Event | None = None) -> asyncio.Task[None]:
        async def one() -> None:
            async with self.turns.one(caller, WAIT_S):
                self.begun.append(caller)
                if done is not None:
                    await done.wait()

        task = asyncio.create_task(one())
        self._tasks.append(task)
        return task

    async def ended(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert (self.turns.under_way, self.turns.waiting) == (0, 0)


async def some_turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("flooding", [1, 3, 10])
async def test_a_call_waits_for_one_call_of_each_other_caller(flooding: int) -> None:
    """However many of these wait."""
    at = Callers(1000)
    for number in range(flooding):
        for _ in range(100):
            at.call(f"hostile-{number}")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    victim = at.call("victim")
    await asyncio.sleep(0)  # it stands in line
    before = len(at.begun)
    await victim
    assert at.begun.index("victim") - before <= flooding + 1, "one has its turn already"
    await at.ended()
    assert len(at.begun) == 100 * flooding + 1


async def test_one_call_begins_in_a_turn_of_the_loop() -> None:
    """More would make the next turn longer, for those that are under way."""
    at = Callers(1000)
    for _ in range(50):
        at.call("alone")
    for turn in range(1, 20):
        await asyncio.sleep(0)
        assert len(at.begun) <= turn
    await at.ended()


async def test_nothing_waits_while_nothing_else_does() -> None:
    turns = Turns(2)
    for _ in range(3):
        begun = asyncio.ensure_future(turns.one("alone", WAIT_S).__aenter__())
        await asyncio.sleep(0)
        assert begun.done(), "it began in its own turn of the loop"
        begun.result().leave()
        await asyncio.sleep(0)


async def test_a_caller_has_as_many_places_as_are_free() -> None:
    at, done = Callers(12), asyncio.Event()
    for _ in range(50):
        at.call("first", done)
    await some_turns()
    assert at.begun == ["first"] * 6
    for _ in range(50):
        at.call("second", done)
    await some_turns()
    assert at.begun.count("second") == 3
    for number in range(3):
        at.call(f"other-{number}", done)
    await some_turns()
    assert at.begun[-3:] == ["other-0", "other-1", "other-2"], "there is room for others"
    done.set()
    await at.ended()
    assert len(at.begun) == 103


async def test_a_place_that_was_left_counts_no_longer_and_is_given_back_once() -> None:
    turns = Turns(2)
    async with turns.one("a", WAIT_S) as place:
        place.leave()
        place.leave()
        assert turns.under_way == 0
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(turns.one("a", WAIT_S))
            assert turns.under_way == 1
    assert turns.under_way == 0


async def test_one_that_leaves_its_line_takes_no_turn() -> None:
    at, done = Callers(2), asyncio.Event()
    holding = at.call("a", done)
    await some_turns()
    leaving = [at.call("a", done) for _ in range(100)]
    staying = at.call("a")
    await some_turns()
    for task in leaving:
        task.cancel()
    await some_turns()
    assert at.turns.waiting == 1
    done.set()
    await staying
    assert at.begun == ["a", "a"]
    await holding
    await at.ended()


async def test_a_turn_that_comes_while_its_caller_leaves_is_given_on() -> None:
    """At each turn of the loop there is, the place goes to one that still wants it."""
    for pause in range(6):
        at, done = Callers(2), asyncio.Event()
        at.call("a", done)
        await some_turns()
        leaving, staying = at.call("a"), at.call("a")
        await some_turns()
        done.set()
        for _ in range(pause):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait_for(staying, WAIT_S)
        await at.ended()


@virtual
async def test_one_that_leaves_as_it_is_told_that_it_is_too_late_gives_no_place_back() -> None:
    turns, loop = Turns(1), asyncio.get_running_loop()
    await turns.begin("a", 1)
    leaving = asyncio.create_task(turns.begin("a", 1, 1.0))
    await some_turns(5)
    loop.call_at(loop.time() + 1.0, leaving.cancel)  # in the turn of the loop in which its time is over
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert turns.under_way == 1
    turns.ended("a")
    async with turns.one("a", WAIT_S):
        assert turns.under_way == 1
    assert turns.under_way == 0


async def test_who_waits_too_long_is_told_when_to_come_back() -> None:
    turns = Turns(2)
    async with turns.one("user:a", WAIT_S):
        with pytest.raises(ResourceExhausted, match="user:a has 1 calls under way") as refused:
            async with turns.one("user:a", 0.01):
                pass
        assert refused.value.retry_after_ms == 1000
    assert (turns.under_way, turns.waiting) == (0, 0)


async def test_a_caller_has_as_many_places_as_are_free_however_many_a_call_takes() -> None:
    turns = Turns(100)
    await turns.begin("a", 50)
    waiting = asyncio.create_task(turns.begin("a", 1))
    await asyncio.sleep(0)
    await turns.begin("b", 25)
    assert not waiting.done()
    turns.ended("a", 50)
    await waiting
    turns.ended("a", 1)
    turns.ended("b", 25)
    assert (turns.under_way, turns.waiting) == (0, 0)


class Own:
    takes_turns_as = "a"


async def test_parts_of_a_call_go_on_while_calls_of_its_caller_wait_for_places() -> None:
    """It has the places that they wait for."""
    turns = Turns(2)
    await turns.begin("a", 1)
    waiting = [asyncio.create_task(turns.begin("a", 1)) for _ in range(3)]
    await some_turns(5)
    work_in_turns(turns, Own())
    async with asyncio.timeout(WAIT_S):
        for _ in range(10):
            await give_way()
    assert not any(task.done() for task in waiting)
    for task in waiting:
        turns.ended("a", 1)
        await task


async def test_a_long_call_takes_turns_with_those_that_begin() -> None:
    at, parts = Callers(1000), 0

    async def long_call() -> None:
        nonlocal parts
        work_in_turns(at.turns, Own())
        for _ in range(100):
            await give_way()
            parts += 1

    long_ = asyncio.create_task(long_call())
    calls = [at.call("b") for _ in range(40)]
    await calls[-1]
    assert 15 <= parts <= 50
    await long_
    await at.ended()


@virtual
async def test_what_waits_begins_when_no_call_has_come_for_a_while_or_for_too_long() -> None:
    """Others may stand in a line before this one."""
    turns = Turns(at_once_max=8, free_per_s=1, quiet_turns=8)
    for caller in ("other", "a"):
        turns.came(caller)
        assert turns.at_once(caller, is_new=True), "few calls do not wait"
    for between, least, most in ((100, 8, 12), (2, PASSED_MAX, PASSED_MAX + 5)):
        turns.came("a")
        waiting, passed = asyncio.create_task(turns.begin("a", is_new=True)), 0
        while not waiting.done():
            await asyncio.sleep(0)
            passed += 1
            if passed % between == 0:
                turns.came("a")
        assert least <= passed <= most


@virtual
async def test_a_call_that_leaves_makes_way_for_one_behind_it() -> None:
    """The first one lacks places, the second one would have had them."""
    turns = Turns(10)
    await turns.begin("other", 6)
    await asyncio.sleep(0)
    first = asyncio.create_task(turns.begin("a", 8))
    second = asyncio.create_task(turns.begin("a", 2))
    await some_turns()
    assert turns.waiting == 2
    first.cancel()
    async with asyncio.timeout(1):
        await second
    assert (turns.under_way, turns.waiting) == (8, 0)


@virtual
async def test_callers_that_call_no_more_are_forgotten() -> None:
    turns = Turns(free_per_s=50)
    for number in range(1000):
        turns.came(str(number))
        assert turns.at_once(str(number), is_new=True)
        await asyncio.sleep(0.1)
    assert len(turns._seen) <= 1 + ACTIVE_S / 0.1

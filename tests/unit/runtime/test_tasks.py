"""Several tasks at once, and their end: none is left running, and a cancelled caller gets its
CancelledError.
"""

from __future__ import annotations

import asyncio
import inspect

import pytest

from ledgermq.runtime.tasks import all_of, end
from tests.virtual_time import virtual


@virtual
async def test_ending_a_task_leaves_nothing_running_when_it_is_cancelled_twice() -> None:
    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)

    task = asyncio.create_task(slow_to_end())
    await asyncio.sleep(0)
    ending = asyncio.create_task(end(task))
    for _ in range(3):
        await asyncio.sleep(1)
        ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert task.done()
    assert asyncio.get_running_loop().time() >= 5


@virtual
async def test_what_tasks_raise_is_dropped() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    tasks = [asyncio.create_task(fail()) for _ in range(2)]
    await asyncio.sleep(0)
    await end(*tasks, None)
    assert all(task.done() for task in tasks)


@virtual
async def test_results_come_in_the_order_of_the_works() -> None:
    async def after(pause_s: float) -> float:
        await asyncio.sleep(pause_s)
        return pause_s

    assert await all_of(after(pause_s) for pause_s in (3.0, 1.0, 2.0)) == [3.0, 1.0, 2.0]
    assert await all_of([]) == []
    assert asyncio.get_running_loop().time() == 3.0


@virtual
async def test_the_first_error_ends_the_others_and_comes_alone() -> None:
    ended = []

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ZeroDivisionError

    async def hold() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(ZeroDivisionError):
        await all_of([hold(), fail(), hold()])
    assert len(ended) == 2


@pytest.mark.parametrize("error_at_s", [0.5, 0.9])
@virtual
async def test_a_cancelled_caller_is_cancelled_though_a_task_fails_at_that_time(error_at_s: float) -> None:
    """A broker's loop that goes on after errors once took such an error for all that had happened,
    and could not be stopped.
    """

    async def fail() -> None:
        await asyncio.sleep(error_at_s)
        raise ZeroDivisionError

    async def fail_in_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            raise ZeroDivisionError

    task = asyncio.create_task(all_of([fail(), fail_in_the_end()]))
    await asyncio.sleep(0.7)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert asyncio.get_running_loop().time() >= 1.5


async def test_no_more_than_so_many_run_at_once_and_results_keep_their_order() -> None:
    running = most = 0

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (5 - number))
        running -= 1
        return number

    assert await all_of(map(work, range(5)), at_once=2) == list(range(5))
    assert most == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("cancels", [1, 2])
async def test_what_waits_for_room_never_begins_when_all_are_cancelled(cancels: int) -> None:
    begun = []

    async def work(number: int) -> None:
        begun.append(number)
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.01)

    works = [work(number) for number in range(3)]
    waiting = asyncio.create_task(all_of(works, at_once=1))
    for _ in range(cancels):
        await asyncio.sleep(0.002)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert begun == [0]
    assert [inspect.getcoroutinestate(each) for each in works] == [inspect.CORO_CLOSED] * 3


async def test_the_first_error_ends_also_those_that_wait_for_room() -> None:
    begun = []

    async def work(number: int) -> None:
        begun.append(number)
        raise ValueError

    with pytest.raises(ValueError):
        await all_of((work(number) for number in range(3)), at_once=1)
    assert begun == [0]

"""The simulated loop itself: gates, kill -9, time that jumps, sets in the same order."""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.loop import Process, SimulatedLoop, run_simulated
from tests.virtual_time import AllTasksWait


async def ticks(seen: list[float]) -> None:
    while True:
        await asyncio.sleep(1)
        seen.append(asyncio.get_running_loop().time())


def test_a_paused_process_runs_nothing_and_finds_that_time_has_passed() -> None:
    async def main(loop: SimulatedLoop) -> list[float]:
        process, seen = Process(loop, "p"), list[float]()
        process.spawn(ticks(seen))
        await asyncio.sleep(2.5)
        process.pause()
        await asyncio.sleep(10)
        assert seen == pytest.approx([1, 2])
        process.resume()
        await asyncio.sleep(2.5)
        return seen

    assert run_simulated(main) == pytest.approx([1, 2, 12.5, 13.5, 14.5])


def test_children_and_timers_belong_to_the_process() -> None:
    async def main(loop: SimulatedLoop) -> list[float]:
        process, seen = Process(loop, "p"), list[float]()

        async def parent() -> None:
            asyncio.get_running_loop().call_later(3, seen.append, -1)
            async with asyncio.TaskGroup() as group:
                group.create_task(ticks(seen))

        process.spawn(parent())
        await asyncio.sleep(1.5)
        process.kill()
        await asyncio.sleep(10)
        return list(seen)

    assert run_simulated(main) == pytest.approx([1])


def test_a_killed_process_does_not_run_its_finally_blocks() -> None:
    ran = []

    async def careful() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            ran.append("finally")

    async def main(loop: SimulatedLoop) -> list[str]:
        process = Process(loop, "p")
        process.spawn(careful())
        await asyncio.sleep(1)
        process.kill()
        await process.died
        await asyncio.sleep(10)
        return list(ran)

    assert run_simulated(main) == []


def test_what_belongs_to_the_world_goes_on() -> None:
    async def main(loop: SimulatedLoop) -> list[float]:
        seen: list[float] = []

        async def asks() -> None:
            await asyncio.shield(loop.in_world(ticks(seen)))

        process = Process(loop, "p")
        process.spawn(asks())
        await asyncio.sleep(1.5)
        process.kill()
        await asyncio.sleep(1)
        return list(seen)

    assert run_simulated(main) == pytest.approx([1, 2])


def test_sets_of_tasks_have_the_same_order_in_each_run() -> None:
    async def main(loop: SimulatedLoop) -> list[int]:
        tasks = {loop.create_task(asyncio.sleep(0)) for _ in range(50)}
        order = sorted(range(50), key=[hash(task) for task in tasks].__getitem__)
        await asyncio.wait(tasks)
        return order

    assert run_simulated(main) == run_simulated(main)


def test_a_cluster_that_hangs_is_an_error() -> None:
    async def main(loop: SimulatedLoop) -> None:
        await loop.create_future()

    with pytest.raises(AllTasksWait):
        run_simulated(main)


def test_no_threads() -> None:
    async def main(loop: SimulatedLoop) -> str:
        return await asyncio.to_thread(lambda: "here")

    assert run_simulated(main) == "here"


def test_a_timer_never_rings_early() -> None:
    """Who waits "until the deadline" and looks at the clock again finds that it is past."""

    async def main(loop: SimulatedLoop) -> int:
        deadline_s, looks = 6.8510115108206 + 0.1 + 0.2, 0
        while loop.time() < deadline_s:
            looks += 1
            await asyncio.wait([loop.create_task(asyncio.sleep(0))])
            await asyncio.wait([loop.create_future()], timeout=deadline_s - loop.time())
        return looks

    assert run_simulated(main) == 1


def test_a_run_that_is_cut_off_as_its_main_task_ends_leaves_nothing_behind() -> None:
    """The end of the main task stops the loop, and may be on its way when an error comes first."""
    ended = list[str]()

    async def other() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("other")

    async def main(loop: SimulatedLoop) -> None:
        def fail() -> None:
            raise KeyboardInterrupt

        loop.create_task(other())
        await asyncio.sleep(1)
        loop.call_soon(fail)

    with pytest.raises(KeyboardInterrupt):
        run_simulated(main)
    assert ended == ["other"]

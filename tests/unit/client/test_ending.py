"""Ending tasks: none is left running, however often whoever ends them is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.client.ending import end
from tests.virtual_time import run_virtual


def test_whoever_is_cancelled_twice_still_leaves_nothing_running() -> None:
    async def main() -> None:
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

    run_virtual(main)


def test_what_tasks_raise_is_dropped() -> None:
    async def main() -> None:
        async def fail() -> None:
            raise ZeroDivisionError

        tasks = [asyncio.create_task(fail()) for _ in range(2)]
        await asyncio.sleep(0)
        await end(*tasks, None)
        assert all(task.done() for task in tasks)

    run_virtual(main)

"""Wait for an event until a time of the loop's clock."""

import asyncio

import pytest

from ledgermq.runtime.wait import wait_for, wait_until
from tests.virtual_time import AllTasksWait, run_virtual


def test_a_wait_ends_with_the_event_or_at_its_deadline() -> None:
    async def main() -> None:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        assert not await wait_until(event, 3.0)
        assert loop.time() == 3.0
        assert not await wait_for(event, 2.0)
        assert loop.time() == 5.0
        loop.call_later(1.0, event.set)
        assert await wait_for(event, 2.0)
        assert loop.time() == 6.0

    run_virtual(main)


def test_an_event_that_is_set_wins_over_a_deadline_that_has_passed() -> None:
    async def main() -> None:
        event = asyncio.Event()
        assert not await wait_until(event, -1.0)
        event.set()
        assert await wait_until(event, -1.0)
        assert await wait_for(event, 0.0)

    run_virtual(main)


def test_without_a_limit_a_wait_lasts() -> None:
    async def main() -> None:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(1e6, event.set)
        assert await wait_until(event, None)
        event.clear()
        await wait_for(event, None)

    with pytest.raises(AllTasksWait):
        run_virtual(main)


def test_a_caller_that_is_cancelled_is_cancelled() -> None:
    async def main() -> None:
        task = asyncio.create_task(wait_for(asyncio.Event(), 1.0))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main)

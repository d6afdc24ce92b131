"""`@virtual` gives a test its fixtures and parameters, and an hour that takes no time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.virtual_time import AllTasksWait, VirtualLoop, run_virtual, virtual, virtual_in


@asynccontextmanager
async def two_values() -> AsyncIterator[tuple[int, float]]:
    yield 1, asyncio.get_running_loop().time()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left


@pytest.mark.parametrize("seconds", [1, 3600])
@virtual
async def test_fixtures_and_parameters_are_given(tmp_path: Path, seconds: int) -> None:
    assert isinstance(asyncio.get_running_loop(), VirtualLoop)
    await asyncio.sleep(seconds)
    assert asyncio.get_running_loop().time() == pytest.approx(seconds)
    assert tmp_path.name.startswith("test_")


@pytest.mark.parametrize("seconds", [1, 3600])
@virtual_in(two_values, "one", "started_s")
async def test_a_worlds_values_come_by_name_beside_fixtures(
    tmp_path: Path, started_s: float, seconds: int, one: int
) -> None:
    await asyncio.sleep(seconds)
    assert (one, started_s) == (1, 0.0)
    assert tmp_path.name.startswith("test_")


def test_a_failed_assertion_at_the_end_of_a_world_fails_the_test() -> None:
    @virtual_in(two_values, "one", "started_s")
    async def leaves_a_task(one: int, started_s: float) -> None:
        asyncio.get_running_loop().create_task(asyncio.sleep(10))

    with pytest.raises(AssertionError):
        leaves_a_task()


def test_a_test_in_which_every_task_waits_fails_at_once() -> None:
    with pytest.raises(AllTasksWait):
        run_virtual(lambda: asyncio.Event().wait())


def test_waiting_for_nothing_says_what_may_be_waited_for() -> None:
    with pytest.raises(AllTasksWait, match="Code that waits for another thread"):
        run_virtual(lambda: asyncio.Event().wait())

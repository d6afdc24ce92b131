"""`Admission` in virtual time: bounds, order, and callers that are cancelled."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import ResourceExhausted
from ledgermq_ledger.object_store.wrappers.resilient import Admission
from tests.virtual_time import virtual

REQUESTS_MAX = 3
BYTES_MAX = 100


@given(
    st.lists(
        st.tuples(st.integers(0, 250), st.floats(0, 3), st.floats(0, 3), st.one_of(st.none(), st.floats(0, 3))),
        max_size=25,
    )
)
@virtual
async def test_bounds_hold_while_callers_come_go_and_are_cancelled(
    callers: list[tuple[int, float, float, float | None]],
) -> None:
    """Each caller: size, when it comes, how long it stays, when it is cancelled."""
    admission = Admission(REQUESTS_MAX, BYTES_MAX, waiting_max=len(callers))
    inside: list[int] = []
    finished = 0

    async def call(size: int, begin: float, stay: float) -> None:
        nonlocal finished
        await asyncio.sleep(begin)
        async with admission.admit(size):
            inside.append(size)
            assert len(inside) <= REQUESTS_MAX
            assert sum(min(one, BYTES_MAX) for one in inside) <= BYTES_MAX
            try:
                await asyncio.sleep(stay)
            finally:
                inside.remove(size)
        finished += 1

    tasks = []
    for size, begin, stay, cancelled in callers:
        task = asyncio.create_task(call(size, begin, stay))
        if cancelled is not None:
            asyncio.get_running_loop().call_later(cancelled, task.cancel)
        tasks.append(task)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert finished + sum(isinstance(result, asyncio.CancelledError) for result in results) == len(callers), results
    for _ in range(REQUESTS_MAX):  # nothing was lost or given twice: there is room for as many as ever
        async with asyncio.timeout(0.001), admission.admit(BYTES_MAX):
            pass


@virtual
async def test_a_large_request_is_not_passed_for_ever() -> None:
    admission = Admission(10, BYTES_MAX, 100)
    order: list[str] = []

    async def call(name: str, size: int) -> None:
        async with admission.admit(size):
            order.append(name)
            await asyncio.sleep(1)

    async with asyncio.TaskGroup() as group:
        group.create_task(call("small 1", 50))
        group.create_task(call("large", 100))
        for i in range(2, 5):
            group.create_task(call(f"small {i}", 50))
    assert order == ["small 1", "large", "small 2", "small 3", "small 4"]


@virtual
async def test_a_caller_that_finds_too_many_waiting_is_refused_at_once() -> None:
    admission = Admission(1, BYTES_MAX, 1)

    async def call() -> None:
        async with admission.admit(1):
            await asyncio.sleep(1)

    async with asyncio.TaskGroup() as group:
        group.create_task(call())
        group.create_task(call())
        await asyncio.sleep(0.5)
        with pytest.raises(ResourceExhausted):
            await call()
    await call()

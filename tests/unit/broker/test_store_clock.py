"""The clock of timed messages: a lower bound of the store's time, from readings of any age."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import Unavailable
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.root.store_clock import StoreClock
from tests.virtual_time import EPOCH_US, virtual, virtual_sources

START_MS = EPOCH_US // 1000


@virtual
async def test_without_a_reading_there_is_no_time_and_one_request_gives_it() -> None:
    clock = StoreClock(MemoryStore("", virtual_sources()))
    assert clock.now_us() is None
    assert clock.wait_s(EPOCH_US) == 0.0
    assert await clock.read() == clock.now_us() == EPOCH_US


@virtual
async def test_a_reading_is_carried_by_the_loop_less_the_drift_and_never_goes_back() -> None:
    clock = StoreClock(MemoryStore("", virtual_sources()))
    clock.learn(START_MS, 0.0)
    await asyncio.sleep(1000)
    now_us = clock.now_us()
    assert now_us == EPOCH_US + 1000 * 999_500
    clock.learn(START_MS, 900.0)
    assert clock.now_us() == now_us, "an earlier bound does not count"
    clock.learn(START_MS + 999_900, 1000.0)
    assert clock.now_us() == EPOCH_US + 999_900_000


@pytest.mark.parametrize("seconds", [0.1, 30.0, 86_400.0])
def test_a_wait_ends_when_its_time_has_come_or_somewhat_before(seconds: float) -> None:
    @virtual
    async def run() -> None:
        clock = StoreClock(MemoryStore("", virtual_sources()))
        clock.learn(START_MS, 0.0)
        due_us, waits = EPOCH_US + round(seconds * 1e6), 0
        while clock.wait_s(due_us):
            await asyncio.sleep(clock.wait_s(due_us))
            waits += 1
        assert clock.now_us() in range(due_us, due_us + 1000)
        assert waits <= 4

    run()


class NoClock(MemoryStore):
    async def store_time_ms(self) -> int:
        raise Unavailable("the store does not answer")


@virtual
async def test_a_recent_reading_costs_no_request_and_an_old_one_does() -> None:
    clock = StoreClock(NoClock("", virtual_sources()))
    clock.learn(START_MS, 0.0)
    await asyncio.sleep(3600)
    assert await clock.read() == clock.now_us()
    await asyncio.sleep(1)
    with pytest.raises(Unavailable):
        await clock.read()

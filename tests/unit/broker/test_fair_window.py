"""Frames of principals that send at once take turns, and one that sends alone waits for nothing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from ledgermq.errors import ResourceExhausted
from ledgermq_broker.admission.fair_window import ACTIVE_S, BYTES_MIN, WAIT_S_MAX, FairWindow
from tests.virtual_time import virtual

FRAME = 256 * 1024
WITHIN_S = 0.02
STORE_BYTES_PER_S = 400e6


class Store:
    """Makes frames durable one after the other, as fast as a disk."""

    def __init__(self, window: FairWindow) -> None:
        self.window = window
        self.durable: Counter[str] = Counter()
        self.service_s: dict[str, list[float]] = {}
        self._free_s = 0.0

    async def send(self, sender: str, size_bytes: int = FRAME) -> None:
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        await self.window.enter(sender, size_bytes)
        done: asyncio.Future[int] = loop.create_future()
        self.window.left(sender, size_bytes, [done])
        self._free_s = max(self._free_s, loop.time()) + size_bytes / STORE_BYTES_PER_S
        await asyncio.sleep(self._free_s - loop.time())
        done.set_result(0)
        self.durable[sender] += size_bytes
        self.service_s.setdefault(sender, []).append(loop.time() - sent_s)

    async def flood(self, sender: str, streams: int) -> None:
        async def stream() -> None:
            while True:
                await self.send(sender)

        await asyncio.gather(*(stream() for _ in range(streams)))


async def entered(window: FairWindow, sender: str, size_bytes: int = FRAME) -> bool:
    """Try to enter, and return whether there was room at once."""
    task = asyncio.create_task(window.enter(sender, size_bytes))
    await asyncio.sleep(0)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        return False
    return True


@virtual
async def test_floods_get_the_same_bytes_however_many_streams_they_have() -> None:
    store = Store(FairWindow(WITHIN_S))
    floods = [asyncio.create_task(store.flood("one", 40)), asyncio.create_task(store.flood("many", 400))]
    await asyncio.sleep(3)
    for flood in floods:
        flood.cancel()
    await asyncio.gather(*floods, return_exceptions=True)
    assert store.durable["one"] == pytest.approx(store.durable["many"], rel=0.1)
    assert store.durable.total() == pytest.approx(3 * STORE_BYTES_PER_S, rel=0.05), "the store is kept busy"


@virtual
async def test_one_that_sends_seldom_waits_for_what_is_in_service_and_for_no_flood() -> None:
    store = Store(FairWindow(WITHIN_S))
    flood = asyncio.create_task(store.flood("flood", 400))
    await asyncio.sleep(0.5)
    for _ in range(200):
        await store.send("calm", 100)
        await asyncio.sleep(0.01)
    flood.cancel()
    await asyncio.gather(flood, return_exceptions=True)
    settled = store.service_s["calm"][20:]
    assert max(settled) <= 2 * WITHIN_S, "a flood of 400 frames takes 0.26 s"


@virtual
async def test_one_principal_alone_waits_for_nothing() -> None:
    window = FairWindow(WITHIN_S)
    for _ in range(3 * BYTES_MIN // FRAME):
        assert await entered(window, "alone")
    assert await entered(window, "other")
    assert not await entered(window, "alone")
    await asyncio.sleep(2 * ACTIVE_S)
    assert await entered(window, "alone"), "the other one sends no longer"


@virtual
async def test_what_was_refused_or_given_up_is_not_in_service() -> None:
    window = FairWindow(WITHIN_S)
    assert await entered(window, "other")
    for _ in range(BYTES_MIN // FRAME - 1):
        assert await entered(window, "flood")
    assert not await entered(window, "flood"), "and the one that gave up leaves no trace"
    window.left("flood", FRAME, [])
    assert await entered(window, "flood")
    assert not await entered(window, "flood")


@virtual
async def test_a_frame_that_waits_for_long_is_refused() -> None:
    window = FairWindow(WITHIN_S)
    assert await entered(window, "other")
    assert await entered(window, "flood", BYTES_MIN)
    keep = asyncio.create_task(keep_sending(window))
    with pytest.raises(ResourceExhausted, match="waited 5 s for its turn"):
        await window.enter("flood", FRAME)
    keep.cancel()
    assert asyncio.get_running_loop().time() >= WAIT_S_MAX
    window.left("flood", BYTES_MIN, [])
    assert await entered(window, "flood")


async def keep_sending(window: FairWindow) -> None:
    while True:
        assert await entered(window, "other", 0)
        await asyncio.sleep(ACTIVE_S / 2)

"""`MeteredStore` tells of every request once, however it ends."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq_ledger.object_store.contract import AlreadyExists, ObjectMissing, StoreUncertain
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.metered import MeteredStore
from tests.stores.counting import CountingMeter
from tests.stores.faulty import Faults, FaultyStore
from tests.virtual_time import virtual, virtual_sources


@virtual
async def test_requests_bytes_time_and_outcomes() -> None:
    inner = FaultyStore(MemoryStore("metered", virtual_sources()), virtual_sources())
    meter = CountingMeter()
    store = MeteredStore(inner, meter)
    await store.put_if_absent("a/1", [b"abc", b"de"])
    with pytest.raises(AlreadyExists):
        await store.put_if_absent("a/1", [b"abcdef"])
    await store.put("a/2", b"xyz")
    inner.faults = Faults(delay_s_max=2.0)
    assert await store.get("a/1") == b"abcde"
    inner.faults = Faults()
    assert await store.get_range("a/1", 1, 100) == b"bcde"
    with pytest.raises(ObjectMissing):
        await store.get("nothing")
    assert [info.key async for info in store.list("")] == ["a/1", "a/2"]
    inner.script("list", "before")
    with pytest.raises(StoreUncertain):
        await anext(aiter(store.list("")))
    await store.open_fence("f")
    await (await store.fenced_puts("f", ["b/1"], 1000)).put_if_absent("b/1", [b"1234567"])
    found = {key: (total.requests, total.bytes_sent, total.bytes_received) for key, total in meter.totals.items()}
    assert found == {
        ("put_if_absent", "OK"): (1, 5, 0),
        ("put_if_absent", "OBJECT_EXISTS"): (1, 6, 0),
        ("put", "OK"): (1, 3, 0),
        ("get", "OK"): (1, 0, 5),
        ("get_range", "OK"): (1, 0, 4),
        ("get", "OBJECT_MISSING"): (1, 0, 0),
        ("list", "OK"): (1, 0, 0),
        ("list", "STORE_UNCERTAIN"): (1, 0, 0),
        ("open_fence", "OK"): (1, 0, 0),
        ("fenced_puts", "OK"): (1, 0, 0),
        ("fenced_put", "OK"): (1, 7, 0),
    }
    assert 0 < meter.totals["get", "OK"].seconds <= 4
    assert meter.totals["put", "OK"].seconds == 0
    assert meter.requests("get") == 2


@virtual
async def test_a_cancelled_request_is_told_too() -> None:
    inner = FaultyStore(MemoryStore("metered", virtual_sources()), virtual_sources(), Faults(delay_s_max=10.0))
    meter = CountingMeter()
    task = asyncio.create_task(MeteredStore(inner, meter).get("a"))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert meter.totals["get", "CANCELLED"].requests == 1

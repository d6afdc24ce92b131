"""`ResilientStore` in virtual time: what it repeats, what it never repeats, and its bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from ledgermq.errors import ResourceExhausted
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore, StoreThrottled, StoreUncertain
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.resilient import PAUSE_MAX_S, TRIES_MAX, ResilientStore
from tests.stores.faulty import Faults, FaultyStore
from tests.virtual_time import virtual, virtual_sources

REPEATED: dict[str, Callable[[ObjectStore], Awaitable[object]]] = {
    "get": lambda store: store.get("a/1"),
    "get_range": lambda store: store.get_range("a/1", 0, 3),
    "get_suffix": lambda store: store.get_suffix("a/1", 3),
    "head": lambda store: store.head("a/1"),
    "delete": lambda store: store.delete(["a/2"]),
    "store_time_ms": lambda store: store.store_time_ms(),
    "open_fence": lambda store: store.open_fence("f"),
    "close_fence": lambda store: store.close_fence("f"),
    "list_fences": lambda store: store.list_fences(),
}
SENT_ONCE: dict[str, Callable[[ObjectStore], Awaitable[object]]] = {
    "put_if_absent": lambda store: store.put_if_absent("a/new", [b"x"]),
    "put": lambda store: store.put("a/new", b"x"),
}


async def faulty(seed: int = 0) -> FaultyStore:
    store = FaultyStore(MemoryStore("resilient", virtual_sources(seed)), virtual_sources(seed))
    for i in range(5):
        await store.inner.put_if_absent(f"a/{i}", [b"abc"])
    return store


@pytest.mark.parametrize("operation", REPEATED)
@virtual
async def test_reads_deletes_and_fences_are_repeated(operation: str) -> None:
    inner = await faulty()
    inner.script(operation, "before", "after", "throttle", "late")
    await REPEATED[operation](ResilientStore(inner, virtual_sources()))
    assert (
        inner.calls[operation] == 5
        if operation not in ("delete", "open_fence", "close_fence")
        else inner.calls[operation] >= 4
    )


@pytest.mark.parametrize("operation", SENT_ONCE)
@pytest.mark.parametrize("fault", ["before", "after", "late", "throttle"])
@virtual
async def test_puts_are_sent_once(operation: str, fault: str) -> None:
    inner = await faulty()
    inner.script(operation, fault)  # type: ignore[arg-type]
    with pytest.raises(StoreUncertain):
        await SENT_ONCE[operation](ResilientStore(inner, virtual_sources()))
    assert inner.calls[operation] == 1
    await inner.settled()


@virtual
async def test_a_fenced_put_is_sent_once() -> None:
    inner = await faulty()
    store = ResilientStore(inner, virtual_sources())
    await store.open_fence("f")
    puts = await store.fenced_puts("f", ["b/1"], 1000)
    inner.script("fenced_put", "after")
    with pytest.raises(StoreUncertain):
        await puts.put_if_absent("b/1", [b"x"])
    assert inner.calls["fenced_put"] == 1
    assert await store.get("b/1") == b"x"


@virtual
async def test_an_answer_is_not_repeated() -> None:
    inner = await faulty()
    with pytest.raises(ObjectMissing):
        await ResilientStore(inner, virtual_sources()).get("nothing")
    assert inner.calls["get"] == 1


@virtual
async def test_it_gives_up_with_the_last_error_after_a_bounded_time() -> None:
    inner = await faulty()
    inner.faults = Faults(throttle=1.0)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(StoreThrottled):
        await ResilientStore(inner, virtual_sources()).get("a/1")
    assert inner.calls["get"] == TRIES_MAX
    assert 2 <= loop.time() - begun <= TRIES_MAX * PAUSE_MAX_S


@virtual
async def test_pauses_grow_and_differ_between_callers() -> None:
    async def pauses(seed: int) -> list[float]:
        inner = await faulty()
        times: list[float] = []
        get = inner.inner.get

        async def failing(key: str) -> bytes:
            times.append(asyncio.get_running_loop().time())
            await get(key)
            raise StoreUncertain("no")

        inner.inner.get = failing  # type: ignore[method-assign]
        with pytest.raises(StoreUncertain):
            await ResilientStore(inner, virtual_sources(seed)).get("a/1")
        return [b - a for a, b in pairwise(times)]

    first, second = await pauses(1), await pauses(2)
    assert first != second
    for found in (first, second):
        assert all(
            0.5 * 0.05 * 2 ** (i + 1) <= pause <= min(PAUSE_MAX_S, 0.05 * 2 ** (i + 1)) for i, pause in enumerate(found)
        ), found


@virtual
async def test_the_stores_own_wish_is_heeded() -> None:
    inner = MemoryStore("wish", virtual_sources())
    await inner.put_if_absent("a", [b"x"])
    errors = [
        StoreThrottled("slow down", retry_after_ms=3000),
        StoreThrottled("slow down", retry_after_ms=86_400_000),
    ]
    get = inner.get

    async def throttled(key: str) -> bytes:
        if errors:
            raise errors.pop(0)
        return await get(key)

    inner.get = throttled  # type: ignore[method-assign]
    begun = asyncio.get_running_loop().time()
    assert await ResilientStore(inner, virtual_sources()).get("a") == b"x"
    assert asyncio.get_running_loop().time() - begun == pytest.approx(3 + PAUSE_MAX_S)


@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_a_list_resumes_behind_the_last_key(seed: int) -> None:
    inner = await faulty(seed)
    for i in range(50):
        await inner.inner.put_if_absent(f"b/{i:02d}", [b""])
    inner.faults = Faults(before=0.2, after=0.3, throttle=0.2, delay_s_max=0.1)
    found = [info.key async for info in ResilientStore(inner, virtual_sources(seed)).list("b/", "b/10")]
    assert found == [f"b/{i:02d}" for i in range(11, 50)]


@virtual
async def test_never_more_in_flight_than_allowed_and_all_get_their_turn() -> None:
    inner = MemoryStore("bounds", virtual_sources())
    now, most = 0, 0

    async def slow_get(key: str) -> bytes:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(1)
        now -= 1
        return b""

    inner.get = slow_get  # type: ignore[method-assign]
    store = ResilientStore(inner, virtual_sources(), in_flight_max=4, waiting_max=100)
    results = await asyncio.gather(*(store.get("a") for _ in range(110)), return_exceptions=True)
    assert most == 4
    assert sum(result == b"" for result in results) == 104
    refused = [result for result in results if isinstance(result, ResourceExhausted)]
    assert len(refused) == 6
    assert all(error.retry_after_ms for error in refused)


@virtual
async def test_readers_that_wait_do_not_hold_up_puts() -> None:
    inner = MemoryStore("apart", virtual_sources())
    never = asyncio.Event()

    async def stuck(key: str) -> bytes:
        await never.wait()
        return b""

    inner.get = stuck  # type: ignore[method-assign]
    store = ResilientStore(inner, virtual_sources(), in_flight_max=2)
    readers = [asyncio.create_task(store.get("a")) for _ in range(10)]
    async with asyncio.timeout(1):
        await store.put_if_absent("b", [b"x"])
    never.set()
    await asyncio.gather(*readers)


@virtual
async def test_a_request_that_pauses_holds_no_place() -> None:
    inner = await faulty()
    store = ResilientStore(inner, virtual_sources(), in_flight_max=1)
    inner.script("get", "throttle")
    pausing = asyncio.create_task(store.get("a/1"))
    await asyncio.sleep(0.001)
    async with asyncio.timeout(0.01):
        assert (await store.head("a/2")).size == 3
    assert await pausing == b"abc"

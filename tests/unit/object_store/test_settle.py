"""`settle_put` tells who won, whatever the store does: no two winners, no winner without its
object, no loser with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ledgermq.errors import StoreUnusable, Unauthorized
from ledgermq_ledger.object_store.contract import AlreadyExists, Buffer, FenceClosed, StoreUncertain
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.settle import ATTEMPTS_MAX, PutOutcome, settle_put
from ledgermq_ledger.object_store.wrappers.resilient import ResilientStore
from tests.stores.faulty import Fault, Faults, FaultyStore
from tests.virtual_time import virtual, virtual_sources

KEY = "ledgers/0001/segments/00000000000000000001"
HARSH = Faults(before=0.15, after=0.2, late=0.2, throttle=0.1, delay_s_max=3.0)


@pytest.mark.parametrize("seed", range(150))
@virtual
async def test_of_many_racers_at_most_one_wins_and_each_gets_the_right_outcome(seed: int) -> None:
    inner = MemoryStore("settle", virtual_sources())
    faulty = FaultyStore(inner, virtual_sources(seed), HARSH)
    store = ResilientStore(faulty, virtual_sources(seed + 1)) if seed % 2 else faulty
    hedge_after_s = (None, 0.0, 0.5, 2.0)[seed % 4]

    async def race(racer: int) -> PutOutcome:
        sources = virtual_sources(1000 * seed + racer)
        await asyncio.sleep(sources.random.uniform(0, 2))
        buffers = [b"data", sources.new_id()]
        outcome = await settle_put(store, KEY, buffers, sources=sources, hedge_after_s=hedge_after_s)
        stands = await inner.get(KEY) if KEY in inner._objects else None
        assert outcome is not PutOutcome.WON or stands == b"".join(buffers)
        assert outcome is not PutOutcome.LOST or stands not in (None, b"".join(buffers))
        return outcome

    outcomes = await asyncio.gather(*(race(racer) for racer in range(3)))
    assert outcomes.count(PutOutcome.WON) <= 1
    if PutOutcome.UNKNOWN not in outcomes:
        assert outcomes.count(PutOutcome.WON) == 1


@pytest.mark.parametrize(
    "faults",
    [["none"], ["after"], ["before", "after"], ["throttle", "before", "none"], ["late"], ["late", "late", "after"]],
)
@pytest.mark.parametrize("hedge_after_s", [None, 0.0, 1.0])
@virtual
async def test_alone_it_wins_in_the_end(faults: list[Fault], hedge_after_s: float | None) -> None:
    store = FaultyStore(MemoryStore("settle", virtual_sources()), virtual_sources(), Faults(delay_s_max=0.2))
    store.script("put_if_absent", *faults)
    sources = virtual_sources(1)
    assert (
        await settle_put(store, KEY, [sources.new_id()], sources=sources, hedge_after_s=hedge_after_s) is PutOutcome.WON
    )
    await store.settled()


@virtual
async def test_the_same_put_settled_twice_has_won_twice() -> None:
    store = MemoryStore("settle", virtual_sources())
    buffers = [b"data", b"put id"]
    for _ in range(2):
        assert await settle_put(store, KEY, buffers, sources=virtual_sources()) is PutOutcome.WON
    assert await settle_put(store, KEY, [b"data", b"put iD"], sources=virtual_sources()) is PutOutcome.LOST
    assert await settle_put(store, KEY, [b"x" * 100], sources=virtual_sources()) is PutOutcome.LOST


@virtual
async def test_a_store_that_stays_away_makes_it_unknown_in_bounded_time() -> None:
    store = FaultyStore(MemoryStore("settle", virtual_sources()), virtual_sources(), Faults(before=1.0))
    assert await settle_put(store, KEY, [b"x"], sources=virtual_sources()) is PutOutcome.UNKNOWN
    assert store.calls["put_if_absent"] == ATTEMPTS_MAX
    assert asyncio.get_running_loop().time() < 120


@pytest.mark.parametrize("error", [StoreUnusable, Unauthorized])
@pytest.mark.parametrize("hedge_after_s", [None, 0.0])
@virtual
async def test_a_final_error_is_raised_at_once(error: type[Exception], hedge_after_s: float | None) -> None:
    class Final(MemoryStore):
        puts = 0

        async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
            self.puts += 1
            await asyncio.sleep(0.1)
            raise error("no")

    store = Final("final", virtual_sources())
    with pytest.raises(error):
        await settle_put(store, KEY, [b"x"], sources=virtual_sources(), hedge_after_s=hedge_after_s)
    assert store.puts == (1 if hedge_after_s is None else 2)


@pytest.mark.parametrize("hedge_after_s", [None, 0.0])
@virtual
async def test_a_final_error_after_an_uncertain_one_proves_nothing(hedge_after_s: float | None) -> None:
    """The first try landed and timed out; then the disk is full, or the credentials are over: the
    put is there all the same.
    """

    class Failing(MemoryStore):
        puts = 0

        async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
            self.puts += 1
            number = self.puts
            await asyncio.sleep(0.1 * number)
            if number == 1:
                await super().put_if_absent(key, buffers)
                raise StoreUncertain("timed out")
            raise StoreUnusable("full")

        async def get_suffix(self, key: str, length: int) -> bytes:
            if self.puts < 3:
                raise Unauthorized("no")
            return await super().get_suffix(key, length)

    store = Failing("failing", virtual_sources())
    assert (
        await settle_put(store, KEY, [b"x"], sources=virtual_sources(), hedge_after_s=hedge_after_s) is PutOutcome.WON
    )


@virtual
async def test_a_cancelled_settle_leaves_no_task() -> None:
    store = FaultyStore(MemoryStore("settle", virtual_sources()), virtual_sources(), Faults(delay_s_max=10.0))
    task = asyncio.create_task(settle_put(store, KEY, [b"x"], sources=virtual_sources(), hedge_after_s=0.01))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("seed", range(40))
@virtual
async def test_a_closed_fence_lets_nothing_through_however_late(seed: int) -> None:
    """On the memory store with late effects: what is not there when the fence has been closed never
    comes.
    """

    store = FaultyStore(MemoryStore("fence", virtual_sources()), virtual_sources(seed))
    await store.open_fence("f")
    puts = await store.fenced_puts("f", [f"a/{i}" for i in range(8)], 60_000)
    store.faults = HARSH
    tasks = [asyncio.create_task(puts.put_if_absent(f"a/{i}", [b"x"])) for i in range(8)]
    await asyncio.sleep(2)
    store.faults = Faults()
    await store.close_fence("f")
    landed = [info.key async for info in store.list("a/")]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await store.settled()
    assert [info.key async for info in store.list("a/")] == landed
    assert all(result is None or isinstance(result, (FenceClosed, StoreUncertain, AlreadyExists)) for result in results)
    with pytest.raises(FenceClosed):
        await puts.put_if_absent("a/0", [b"late"])

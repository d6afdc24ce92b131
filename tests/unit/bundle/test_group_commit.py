"""When segments are put, what is refused, and that no caller waits forever.

Virtual time: a put takes 100 ms here.
"""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import LedgerMQError, NotOwner, ResourceExhausted, StoreFull
from ledgermq_broker.bundle.committing.group_commit import RETRY_MS_MAX, RETRY_MS_MIN
from ledgermq_ledger.log.segments.segment import read_index
from ledgermq_ledger.log.writing.writer import LedgerWriter
from tests.unit.bundle.slow_puts import PUT_S, World, in_world, overload
from tests.worlds.bundles import opened, produce
from tests.worlds.ledgers import batch, session


@in_world(flush_spacing_s=10.0)
async def test_a_lone_batch_is_put_at_once(world: World) -> None:
    await world.send()
    assert world.flushes() == [0]
    await asyncio.sleep(1)
    await world.send()
    assert world.flushes() == [0, 1.1]


@in_world()
async def test_while_a_put_is_in_flight_the_next_waits_for_the_spacing(world: World) -> None:
    first = world.send()
    await asyncio.sleep(0.001)
    rest = [world.send(), world.send()]
    await asyncio.gather(first, *rest)
    assert world.flushes() == [0, 0.03]


@in_world(flush_spacing_s=10.0)
async def test_or_until_one_ends(world: World) -> None:
    first = world.send()
    await asyncio.sleep(0.001)
    second = world.send()
    await asyncio.gather(first, second)
    assert world.flushes() == [0, 0.1]


@in_world(flush_spacing_s=10.0, flush_bytes=4000)
async def test_or_until_enough_bytes_wait(world: World) -> None:
    first = world.send()
    await asyncio.sleep(0.001)
    second = [world.send(b"x" * 400)]
    await asyncio.sleep(0.001)
    assert world.flushes() == [0]
    second.append(world.send(b"x" * 4000))
    await asyncio.gather(first, *second)
    assert world.flushes()[1] == 0.002


@in_world(flush_spacing_s=0.0, puts_in_flight_max=3)
async def test_no_more_puts_in_flight_than_allowed(world: World) -> None:
    waiting = []
    for _ in range(50):
        waiting.append(world.send())
        await asyncio.sleep(0.005)
    assert sorted(await asyncio.gather(*waiting)) == list(range(50))
    assert max(sum(1 for b in world.flushes() if a <= b < a + PUT_S - 1e-4) for a in world.flushes()) == 3


@in_world(flush_bytes=8192)
async def test_a_segment_holds_no_more_than_its_limits(world: World) -> None:
    big = batch(b"x" * 3000)
    length = len(big.data)
    offsets = await produce(world.owner, *[big] * 10)
    assert offsets == list(range(10))
    first = len(world.store.begun) - len(world.flushes()) + 1
    sizes = [len((await read_index(world.store, 1, first + i)).index.batches) for i in range(len(world.flushes()))]
    assert sum(sizes) == 10
    assert max(sizes) == 8192 // length


@in_world(produce_memory_bytes_max=20_000)
async def test_overload_is_refused_with_a_time_and_takes_nothing(world: World) -> None:
    admitted: list[asyncio.Future[int]] = []
    refused = overload(world, [batch(b"x" * 1000), batch(b"y")], admitted)
    assert RETRY_MS_MIN <= (refused.retry_after_ms or 0) <= RETRY_MS_MAX
    assert world.context.produce_memory.taken <= 10_000
    assert len(admitted) >= 4
    assert await asyncio.gather(*admitted) == list(range(len(admitted)))
    assert world.context.produce_memory.taken == 0
    await world.send()


@in_world(produce_memory_bytes_max=40_000)
async def test_a_bundle_whose_puts_hang_leaves_room_for_the_others(world: World) -> None:
    world.store.put_s = 1.0
    async with opened(world.context, bundle=2) as other:
        overload(world, [batch(b"x" * 500)], [])
        held = world.context.produce_memory.taken
        assert 15_000 < held <= 20_000
        await asyncio.gather(*other.produce([batch(b"x" * 15_000)], durable=True))


@in_world(produce_memory_bytes_max=50_000, flush_bytes=8000)
async def test_the_retry_time_follows_the_pace_of_the_store(world: World) -> None:
    async def settle() -> int:
        for _ in range(20):
            refused = overload(world, [batch(b"x" * 2000)], [])
            await asyncio.sleep(world.store.put_s)
        return refused.retry_after_ms or 0

    fast = await settle()
    world.store.put_s = 3.0
    await asyncio.sleep(10)
    assert await settle() > 3 * fast


@in_world(queue_batches_max=10)
async def test_the_count_of_waiting_batches_is_bounded_too(world: World) -> None:
    waiting = world.owner.produce([batch(b"a")] * 10, durable=True)
    with pytest.raises(ResourceExhausted):
        world.owner.produce([batch(b"a")], durable=True)
    await asyncio.gather(*waiting)
    await asyncio.gather(
        *world.owner.produce([batch(b"a")] * 20, durable=True)
    )  # alone, a request of any size goes through


@in_world()
async def test_all_waiters_of_a_refused_flush_fail_and_so_does_what_is_queued_and_the_term_goes_on(
    world: World,
) -> None:
    world.store.broken = StoreFull("the disk is full")
    waiting = [world.send() for _ in range(3)]
    await asyncio.sleep(0.001)
    waiting += [world.send() for _ in range(3)]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(r, StoreFull) for r in results), results
    assert world.owner.lost is None
    assert world.context.produce_memory.taken == 0
    with pytest.raises(StoreFull, match="disk is full") as told:  # refused at once, and told when to come back
        world.send()
    assert told.value.retry_after_ms
    gate = asyncio.create_task(world.context.write_gate.run(0))
    await asyncio.sleep(5)
    assert world.context.write_gate.refusal is not None
    world.store.broken = None
    await asyncio.sleep(5)  # no producer has to write for the broker to notice
    assert world.context.write_gate.refusal is None
    assert await world.send() == 0
    gate.cancel()


@in_world(flush_spacing_s=0.0, puts_in_flight_max=2)
async def test_no_batch_waits_for_ever_when_a_put_is_refused_while_another_hangs(world: World) -> None:
    """All places for puts are taken by segments that are void, and the store takes records again."""
    world.store.broken = StoreFull("the disk is full")
    refused = [world.send()]
    await asyncio.sleep(0.001)
    world.store.put_s = 60.0
    refused.append(world.send())
    await asyncio.sleep(0.2)
    assert all(isinstance(r, StoreFull) for r in await asyncio.gather(*refused, return_exceptions=True))
    world.store.broken, world.store.put_s = None, PUT_S
    gate = asyncio.create_task(world.context.write_gate.run(0))
    await asyncio.sleep(5)
    assert world.context.write_gate.refusal is None
    async with asyncio.timeout(200):
        for refuses in (world.send, lambda: world.owner.check_room(1)):  # who asks before it changes its state is told
            with pytest.raises(StoreFull, match="disk is full") as told:
                refuses()
            assert told.value.retry_after_ms
        await asyncio.sleep(60)
        assert await world.send() == 0
    gate.cancel()


@in_world()
async def test_a_bug_in_a_backend_leaves_no_waiter_behind(world: World) -> None:
    world.store.broken = RuntimeError("a bug")
    with pytest.raises(LedgerMQError):
        await world.send()
    await world.owner.ended.wait()


@in_world()
async def test_a_bug_in_the_writer_ends_the_term_and_answers_everybody(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(self: LedgerWriter, appends: object) -> bool:
        raise AssertionError("impossible")

    first = world.send()
    await asyncio.sleep(0.001)
    monkeypatch.setattr(LedgerWriter, "write", write)
    rest = [world.send(), world.send()]
    for waiting in (first, *rest):
        with pytest.raises(NotOwner):
            await waiting
    await world.owner.ended.wait()
    with pytest.raises(NotOwner, match="impossible"):
        world.send()
    assert "the term is over" in caplog.text


@in_world()
async def test_a_producer_may_have_only_so_many_batches_under_way(world: World) -> None:
    def send(sequence: int, producer: int = 1) -> asyncio.Future[int]:
        return world.owner.produce([batch(b"a", producer=session(sequence, producer))], durable=True)[0]

    waiting = [send(sequence) for sequence in range(5)]
    with pytest.raises(ResourceExhausted, match="5 batches"):
        send(5)
    again = [send(sequence) for sequence in range(5)]  # retries of the same are no more batches
    other = send(0, producer=2)
    assert await asyncio.gather(*waiting) == await asyncio.gather(*again) == list(range(5))
    assert await other == 5
    assert await send(5) == 6


@in_world()
async def test_retries_join_the_flush_in_flight_and_give_their_memory_back(world: World) -> None:
    first = world.owner.produce([batch(b"a", producer=session(0))], durable=True)[0]
    await asyncio.sleep(0.05)
    again = world.owner.produce([batch(b"a", producer=session(0))], durable=True)[0]
    assert await again == await first == 0
    late = world.owner.produce([batch(b"a", producer=session(0))], durable=True)[0]
    assert await late == 0
    assert world.flushes() == [0]


@in_world()
async def test_a_cancelled_caller_does_not_disturb_other_callers(world: World) -> None:
    waiting = [world.send() for _ in range(3)]
    waiting[1].cancel()
    assert await waiting[0] == 0
    assert await waiting[2] == 2


@in_world(flush_batches=1, puts_in_flight_max=2)
async def test_release_flushes_what_is_queued_behind_full_puts(world: World) -> None:
    waiting = [world.send() for _ in range(20)]
    release = asyncio.create_task(world.owner.release("b"))
    await asyncio.sleep(0)
    with pytest.raises(NotOwner):
        world.send()
    await release
    assert await asyncio.gather(*waiting) == list(range(20))


@in_world()
async def test_release_of_a_lost_term_says_so_and_closes(world: World) -> None:
    async with opened(world.context):
        waiting = world.send()
        with pytest.raises(NotOwner):
            await world.owner.release("b")
        with pytest.raises(NotOwner):
            await waiting
    assert world.owner.ended.is_set()

"""When segments are put, what is refused, and that no caller waits forever.

Virtual time: a put takes 100 ms here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner, ResourceExhausted, StoreFull
from ledgermq_broker.bundle.committing.group_commit import RETRY_MS_MAX, RETRY_MS_MIN
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext, BundleLimits
from ledgermq_ledger.log.segment import Batch, read_index
from ledgermq_ledger.log.writer import LedgerWriter
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.stores.one_put import OnePut
from tests.virtual_time import VirtualTest, virtual_in, virtual_sources
from tests.worlds.bundles import TOPIC, bundle_context, opened, produce
from tests.worlds.ledgers import batch, session

PUT_S = 0.1


class SlowPuts(OnePut):
    """Puts of segments take `put_s`; `begun` says when each began. `broken`: what the next ones
    raise.
    """

    def __init__(self, inner: ObjectStore, put_s: float = PUT_S) -> None:
        super().__init__(inner)
        self.put_s = put_s
        self.begun: list[float] = []
        self.broken: Exception | None = None

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if "/segments/" in key:
            self.begun.append(round(asyncio.get_running_loop().time(), 6))
            await asyncio.sleep(self.put_s)
        if self.broken is not None and ("/segments/" in key or key.startswith(".probe")):
            raise self.broken
        await self.inner.put_if_absent(key, buffers)


@dataclass
class World:
    store: SlowPuts
    context: BundleContext
    owner: BundleOwner
    t0: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    def flushes(self) -> list[float]:
        """When puts began, in seconds since the bundle was opened."""
        return [round(at - self.t0, 6) for at in self.store.begun if at >= self.t0]

    def send(self, value: bytes = b"a") -> asyncio.Future[int]:
        return self.owner.produce([batch(value)], durable=True)[0]


@asynccontextmanager
async def world_of(**limits: float) -> AsyncIterator[World]:
    sources = virtual_sources()
    store = SlowPuts(MemoryStore("t", sources))
    chosen = {"background_compaction": False, "flush_spacing_s": 0.03, **limits}
    context = bundle_context(store, sources, BundleLimits(**chosen))  # type: ignore[arg-type]
    async with opened(context) as owner:
        yield World(store, context, owner)
    assert context.produce_memory.taken == 0


def in_world(**limits: float) -> VirtualTest:
    return virtual_in(partial(world_of, **limits), "world")


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


def overload(world: World, request: list[Batch], admitted: list[asyncio.Future[int]]) -> ResourceExhausted:
    """Produce until that is refused."""
    while True:
        try:
            admitted += world.owner.produce(request, durable=True)
        except ResourceExhausted as error:
            return error


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
        waiting = await asyncio.gather(world.send(), world.send(), return_exceptions=True)
        assert all(isinstance(r, StoreFull) for r in waiting), waiting
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


async def segments(world: World) -> list[list[int]]:
    """The number of records of each batch, for each segment that was put."""
    first = len(world.store.begun) - len(world.flushes()) + 1
    indexes = [(await read_index(world.store, 1, first + i)).index for i in range(len(world.flushes()))]
    return [[entry.record_count for entry in index.batches] for index in indexes]


def sized(*records: int, partition: int = 0) -> list[Batch]:
    """Batches with so many records each, by which a test tells them apart."""
    return [batch(*[b"x"] * count, partition=partition) for count in records]


@in_world(flush_batches=4)
async def test_batches_admitted_together_are_not_split_by_the_number_of_batches(world: World) -> None:
    waiting = world.owner.produce(sized(1, 2, 3), durable=True)
    waiting += world.owner.produce(sized(11, 12), durable=True, together=True)
    waiting += world.owner.produce(sized(21, 22, 23, 24, 25, 26), durable=True, together=True)
    waiting += world.owner.produce(sized(31, 32), durable=True)
    offsets = await asyncio.gather(*waiting)
    assert await segments(world) == [[1, 2, 3], [11, 12], [21, 22, 23, 24, 25, 26], [31, 32]]
    assert offsets == sorted(offsets)


@in_world(flush_bytes=8192)
async def test_batches_admitted_together_are_not_split_by_bytes(world: World) -> None:
    big = batch(b"x" * 3000)
    assert 3 * len(big.data) > 8192 > 2 * len(big.data)
    waiting = world.owner.produce([big], durable=True)
    waiting += world.owner.produce([big, big], durable=True, together=True)
    waiting += world.owner.produce([big] * 5, durable=True, together=True)
    waiting += world.owner.produce([big], durable=True)
    assert await asyncio.gather(*waiting) == list(range(9))
    assert [len(counts) for counts in await segments(world)] == [1, 2, 5, 1]


@in_world()
async def test_groups_share_a_segment_that_has_room_for_all_of_each(world: World) -> None:
    waiting = world.owner.produce(sized(1, 2), durable=True, together=True)
    waiting += world.owner.produce(sized(3), durable=True)
    waiting += world.owner.produce(sized(4, 5), durable=True, together=True)
    waiting += world.owner.produce([], durable=True, together=True)
    assert await asyncio.gather(*waiting) == [0, 1, 3, 6, 10]
    assert await segments(world) == [[1, 2, 3, 4, 5]]


@in_world(flush_batches=2, puts_in_flight_max=1, flush_spacing_s=0.0)
async def test_a_refused_put_fails_all_of_a_group_and_no_half_of_it_is_stored(world: World) -> None:
    first = world.send()
    await asyncio.sleep(0.001)
    group = world.owner.produce(sized(1, 2, 3), durable=True, together=True)
    await first
    world.store.broken = StoreFull("the disk is full")
    results = await asyncio.gather(*group, return_exceptions=True)
    assert [type(result) for result in results] == [StoreFull] * 3
    assert world.owner.durable_end(TOPIC, 0) == 1
    assert world.context.produce_memory.taken == 0


@in_world(puts_in_flight_max=1)
async def test_a_group_in_the_queue_fails_as_a_whole_when_the_term_ends(world: World) -> None:
    first = world.send()
    await asyncio.sleep(0.001)
    group = world.owner.produce(sized(1, 2), durable=True, together=True)
    await asyncio.sleep(0.001)
    await world.owner.close()
    results = await asyncio.gather(first, *group, return_exceptions=True)
    assert [type(result) for result in results] == [NotOwner] * 3
    assert world.context.produce_memory.taken == 0


def has_room(world: World, size_bytes: int, batches: int) -> bool:
    try:
        world.owner.check_room(size_bytes, batches)
    except ResourceExhausted:
        return False
    return True


@in_world(produce_memory_bytes_max=20_000)
async def test_a_group_is_admitted_with_all_its_memory_or_not_at_all(world: World) -> None:
    group = [batch(b"x" * 1000), batch(b"y" * 1000)]
    size_bytes = sum(len(each.data) for each in group)
    admitted = 0
    waiting: list[asyncio.Future[int]] = []
    while has_room(world, size_bytes, len(group)):
        waiting += world.owner.produce(group, durable=True, together=True)
        admitted += size_bytes
        assert world.context.produce_memory.taken == admitted
    with pytest.raises(ResourceExhausted):
        world.owner.produce(group, durable=True, together=True)
    assert world.context.produce_memory.taken == admitted
    assert await asyncio.gather(*waiting) == list(range(len(waiting)))
    assert world.context.produce_memory.taken == 0
    world.owner.check_room(size_bytes)


@in_world(produce_memory_bytes_max=20_000)
async def test_what_the_whole_broker_holds_counts_for_the_room_of_a_bundle(world: World) -> None:
    async with opened(world.context, bundle=2) as other:
        overload(world, [batch(b"x" * 500)], [])
        other.check_room(5_000)
        with pytest.raises(ResourceExhausted):
            other.check_room(15_000)
        await other.close()
        with pytest.raises(NotOwner):
            other.check_room(1)


@in_world(queue_batches_max=10)
async def test_the_room_for_batches_counts_those_that_wait(world: World) -> None:
    world.owner.check_room(1, 100)
    waiting = world.owner.produce(sized(*[1] * 8), durable=True, together=True)
    world.owner.check_room(1, 2)
    with pytest.raises(ResourceExhausted):
        world.owner.check_room(1, 3)
    await asyncio.gather(*waiting)


@in_world()
async def test_room_is_refused_while_the_store_takes_no_records(world: World) -> None:
    world.store.broken = StoreFull("the disk is full")
    with pytest.raises(StoreFull):
        await world.send()
    with pytest.raises(StoreFull):
        world.owner.check_room(1)


@in_world()
async def test_a_sequence_is_judged_alone_and_so_cannot_be_stored_together(world: World) -> None:
    with pytest.raises(InvalidRequest):
        world.owner.produce([batch(b"a", producer=session(0)), batch(b"b")], durable=True, together=True)
    assert world.context.produce_memory.taken == 0


@in_world(flush_batches=10, puts_in_flight_max=1)
async def test_a_principal_waits_for_what_is_in_flight_not_for_all_that_another_has_queued(world: World) -> None:
    flood = [world.owner.produce([batch(b"f")], durable=True, sender="user:flood")[0] for _ in range(100)]
    await asyncio.sleep(0.01)
    [calm] = world.owner.produce([batch(b"c")], durable=True, sender="user:calm")
    assert await calm == 10
    assert sorted([await done for done in flood]) == [offset for offset in range(101) if offset != 10]


@in_world(flush_batches=10, puts_in_flight_max=1)
async def test_records_of_the_broker_itself_keep_their_place_among_those_of_principals(world: World) -> None:
    def send(sender: str) -> asyncio.Future[int]:
        return world.owner.produce([batch(b"x")], durable=True, sender=sender)[0]

    sent = [send(sender) for sender in (*["a"] * 20, "", "b", "a")]
    assert [await done for done in sent] == list(range(23))


@in_world(puts_in_flight_max=1, queue_batches_max=100)
async def test_a_principal_leaves_room_in_the_queue_for_another(world: World) -> None:
    def send(sender: str) -> asyncio.Future[int]:
        return world.owner.produce([batch(b"x")], durable=True, sender=sender)[0]

    held = [world.send()]
    await asyncio.sleep(0.001)
    held += [send("user:flood") for _ in range(75)]
    with pytest.raises(ResourceExhausted):
        held += [send("user:flood") for _ in range(10)]
    held.append(send("user:calm"))
    await asyncio.gather(*held)

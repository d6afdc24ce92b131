"""Batches that are admitted together, and who has room: the bundle, the broker, each principal."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import InvalidRequest, NotOwner, ResourceExhausted, StoreFull
from ledgermq_ledger.log.segments.segment import Batch, read_index
from tests.unit.bundle.slow_puts import World, in_world, overload
from tests.worlds.bundles import TOPIC, opened
from tests.worlds.ledgers import batch, session


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

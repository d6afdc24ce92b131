"""One owned bundle end to end on a memory store: produce, fetch, wait, hand over, end."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import InvalidRequest, NotOwner, OffsetOutOfRange, UnknownPartition
from ledgermq.sources import Sources
from ledgermq_broker.bundle.committing.group_commit import OFFSET_NOT_KNOWN
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.topics.topic import Topic
from tests.worlds.bundles import TOPIC, bundle_context, fetch_values, opened, produce
from tests.worlds.ledgers import batch, session

EVERYTHING = 1 << 20


@pytest.fixture
def context(sources: Sources) -> BundleContext:
    return bundle_context(MemoryStore("owner", sources), sources)


async def test_produced_records_can_be_fetched(context: BundleContext) -> None:
    async with opened(context) as owner:
        assert await produce(owner, batch(b"a", b"b"), batch(b"x", partition=1), batch(b"c")) == [0, 0, 2]
        assert await fetch_values(owner, 0) == [b"a", b"b", b"c"]
        assert await fetch_values(owner, 1) == [b"x"]
        found = await owner.fetch(TOPIC, 0, 3, EVERYTHING)
        assert (found.high_watermark, found.log_start, found.batches) == (3, 0, [])


async def test_a_fetch_begins_with_the_batch_that_holds_the_offset(context: BundleContext) -> None:
    async with opened(context) as owner:
        await produce(owner, batch(b"a", b"b"), batch(b"c"), batch(b"d"))
        found = await owner.fetch(TOPIC, 0, 1, 1)
        assert [(b.base_offset, b.record_count) for b in found.batches] == [(0, 2)]
        found = await owner.fetch(TOPIC, 0, 2, EVERYTHING)
        assert [b.base_offset for b in found.batches] == [2, 3]


async def test_offsets_that_are_not_there_are_refused_by_name(context: BundleContext) -> None:
    async with opened(context) as owner:
        await produce(owner, batch(b"a"))
        with pytest.raises(OffsetOutOfRange, match="offset 2 is not between log start 0 and end 1"):
            await owner.fetch(TOPIC, 0, 2, EVERYTHING)
        with pytest.raises(UnknownPartition):
            await owner.fetch(TOPIC, TOPIC.partitions, 0, EVERYTHING)
        with pytest.raises(NotOwner):
            await owner.fetch(Topic(9, "other", (4,)), 0, 0, EVERYTHING)


async def test_a_new_owner_serves_what_the_former_one_acknowledged(context: BundleContext) -> None:
    async with opened(context) as first:
        await produce(first, batch(b"a"), batch(b"b", b"c"))
        async with opened(context) as second:
            assert second.epoch == first.epoch + 1
            assert await fetch_values(second, 0) == [b"a", b"b", b"c"]
            assert await produce(second, batch(b"d")) == [3]
            with pytest.raises(NotOwner):
                await produce(first, batch(b"zombie"))
            await first.ended.wait()
            with pytest.raises(NotOwner):
                await first.fetch(TOPIC, 0, 0, EVERYTHING)
            assert await fetch_values(second, 0) == [b"a", b"b", b"c", b"d"]


async def test_a_long_poll_wakes_with_new_data_and_with_the_end_of_the_term(context: BundleContext) -> None:
    async with opened(context) as owner:
        key = PartitionId(TOPIC.id, 0)
        poll = asyncio.create_task(owner.wait_for_data({key: 0, PartitionId(TOPIC.id, 1): 0}))
        await asyncio.sleep(0)
        assert not poll.done()
        await produce(owner, batch(b"a"))
        await poll
        await owner.wait_for_data({key: 0})
        last = asyncio.create_task(owner.wait_for_data({key: 1}))
        await asyncio.sleep(0)
        await owner.close()
        await last


async def test_a_long_poll_above_the_end_waits_until_its_offset_is_there(context: BundleContext) -> None:
    async with opened(context) as owner:
        poll = asyncio.create_task(owner.wait_for_data({PartitionId(TOPIC.id, 0): 2}))
        for value in (b"0", b"1"):
            await produce(owner, batch(value))
            await asyncio.sleep(0)
            assert not poll.done()
        await produce(owner, batch(b"2"))
        await poll
        assert owner._ledger.waiters.places == []


async def test_latest_looks_for_a_foreign_claim_first(context: BundleContext) -> None:
    async with opened(context) as first:
        await produce(first, batch(b"a"))
        assert await first.list_offset(TOPIC, 0, "latest") == 1
        assert await first.list_offset(TOPIC, 0, "earliest") == 0
        async with opened(context) as second:
            await produce(second, batch(b"b"))
            with pytest.raises(NotOwner):
                await first.list_offset(TOPIC, 0, "latest")


async def test_release_makes_everything_durable_and_names_the_successor(context: BundleContext) -> None:
    async with opened(context) as owner:
        waiting = owner.produce([batch(b"a"), batch(b"b")], durable=True)
        await owner.release("broker-2")
        assert await asyncio.gather(*waiting) == [0, 1]
        with pytest.raises(NotOwner) as caught:
            owner.produce([batch(b"c")], durable=True)
        assert caught.value.owner == "broker-2"
        async with opened(context) as second:
            assert await fetch_values(second, 0) == [b"a", b"b"]


async def test_answered_on_receipt_is_answered_at_once_and_durable_soon(context: BundleContext) -> None:
    async with opened(context) as owner:
        [received] = owner.produce([batch(b"a")], durable=False)
        assert received.result() == OFFSET_NOT_KNOWN
        await owner.wait_for_data({PartitionId(TOPIC.id, 0): 0})
        assert await fetch_values(owner, 0) == [b"a"]
        with pytest.raises(InvalidRequest):
            owner.produce([batch(b"b", producer=session(0))], durable=False)


async def test_close_fails_waiters_and_leaves_no_task(context: BundleContext) -> None:
    before = asyncio.all_tasks()
    owner = await BundleOwner.open(1, context)
    waiting = owner.produce([batch(b"a")], durable=True)
    await owner.close()
    await owner.close()
    with pytest.raises(NotOwner):
        await waiting[0]
    assert owner.ended.is_set()
    assert owner.lost is not None
    assert asyncio.all_tasks() == before
    assert context.produce_memory.taken == 0
    assert context.tail_cache.size_bytes == 0


async def test_two_openers_of_one_bundle_end_with_one_owner(context: BundleContext) -> None:
    results = await asyncio.gather(*(BundleOwner.open(1, context) for _ in range(5)), return_exceptions=True)
    owners = [r for r in results if isinstance(r, BundleOwner)]
    assert all(isinstance(r, NotOwner) for r in results if not isinstance(r, BundleOwner))
    served = 0
    for owner in owners:
        try:
            served += len(await produce(owner, batch(b"a")))
        except NotOwner:
            pass
        await owner.close()
    assert served == 1, "the last valid claim serves, and no other does"

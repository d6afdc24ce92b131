"""Where fetched bytes come from: the tail cache, ranges of segments, the index of older ones."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.sources import Sources
from ledgermq_broker.bundle.shared.context import BundleLimits
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from tests.unit.bundle.counted_reads import NO_CACHE, CountingStore, Lists, Sums, counting_store
from tests.worlds.bundles import TOPIC, bundle_context, fetch_values, opened, produce
from tests.worlds.ledgers import batch, ledger_of

store = pytest.fixture(counting_store)


@pytest.mark.parametrize("size", [1, 5000])
async def test_the_tail_comes_from_memory(store: CountingStore, sources: Sources, size: int) -> None:
    """Small batches are joined there, large ones are kept as they came."""
    sums = Sums()
    values = [b"a" * size, b"b", b"c" * size]
    async with opened(bundle_context(store, sources, metrics=sums)) as owner:
        await produce(owner, *[batch(value) for value in values], batch(b"x" * size, partition=1))
        assert await fetch_values(owner, 0) == values
        assert await fetch_values(owner, 1) == [b"x" * size]
    assert store.ranges == []
    assert list(sums.sources) == ["cache"]


async def test_neighbouring_batches_come_in_one_request(store: CountingStore, sources: Sources) -> None:
    sums = Sums()
    async with opened(bundle_context(store, sources, NO_CACHE, sums)) as owner:
        await produce(owner, batch(b"a"), batch(b"x", partition=1), batch(b"b"), batch(b"c"))
        await produce(owner, batch(b"d"))
        assert await fetch_values(owner, 0) == [b"a", b"b", b"c", b"d"]
    assert len(store.ranges) == 2, store.ranges
    assert list(sums.sources) == ["segment"]


async def test_cold_reads_have_their_own_bound_and_leave_the_cache_alone(
    store: CountingStore, sources: Sources
) -> None:
    limits = BundleLimits(cache_bytes_max=0, cold_reads_max=3, background_compaction=False)
    async with opened(bundle_context(store, sources, limits)) as owner:
        for i in range(20):
            await produce(owner, batch(b"%d" % i))
        store.gate.clear()
        readers = [asyncio.create_task(fetch_values(owner, 0, offset)) for offset in range(10)]
        await asyncio.sleep(0)
        assert await produce(owner, batch(b"new")) == [20]  # producers do not wait for cold readers
        store.gate.set()
        for offset, values in enumerate(await asyncio.gather(*readers)):
            assert values[0] == b"%d" % offset
    assert store.running_most == 3


async def test_the_cache_is_bounded_and_the_oldest_go_first(store: CountingStore, sources: Sources) -> None:
    one = len(batch(b"x" * 1000).data)
    context = bundle_context(store, sources, BundleLimits(cache_bytes_max=5 * one, background_compaction=False))
    async with opened(context) as owner:
        for _ in range(20):
            await produce(owner, batch(b"x" * 1000))
            assert context.tail_cache.size_bytes <= 5 * one
        await owner.fetch(TOPIC, 0, 15, 1 << 20)
        assert store.ranges == []
        found = await owner.fetch(TOPIC, 0, 14, 1 << 20)
        assert found.batches[0].base_offset == 14
        assert len(store.ranges) >= 1


async def test_a_fetch_finds_segments_before_the_checkpoint(store: CountingStore, sources: Sources) -> None:
    context = bundle_context(store, sources)
    async with opened(context) as owner:
        for i in range(10):
            await produce(owner, batch(b"%d" % i))
    await advance_checkpoint(ledger_of(store, 1, sources=sources))
    async with opened(context) as owner:
        await produce(owner, batch(b"10"))
        assert await fetch_values(owner, 0, 10) == [b"10"]
        assert store.ranges == []
        assert await fetch_values(owner, 0, 4) == [b"%d" % i for i in range(4, 11)]
        assert await fetch_values(owner, 0) == [b"%d" % i for i in range(11)]


async def test_older_segments_are_looked_up_once_for_all_who_ask(store: CountingStore, sources: Sources) -> None:
    context = bundle_context(store, sources)
    async with opened(context) as owner:
        for i in range(10):
            await produce(owner, batch(b"%d" % i), batch(b"x", partition=1))
    await advance_checkpoint(ledger_of(store, 1, sources=sources))
    counting = Lists(store)
    async with opened(bundle_context(counting, sources)) as owner:
        before = counting.lists
        await asyncio.gather(*(fetch_values(owner, partition, offset) for partition in (0, 1) for offset in range(10)))
        assert 0 < counting.lists - before < 12


async def test_what_one_term_learned_of_older_segments_serves_the_next(store: CountingStore, sources: Sources) -> None:
    """Where a bundle goes to and fro between busy brokers, each owner read the index of every
    untrimmed segment again.
    """
    async with opened(bundle_context(store, sources)) as owner:
        for i in range(10):
            await produce(owner, batch(b"%d" % i))
    await advance_checkpoint(ledger_of(store, 1, sources=sources))
    counting = _Suffixes(store)
    context = bundle_context(counting, sources)
    read = []
    for _ in range(2):
        async with opened(context) as owner:
            counting.suffixes.clear()
            assert await fetch_values(owner, 0) == [b"%d" % i for i in range(10)]
            read.append(len([key for key in counting.suffixes if "segments" in key]))
    assert read[0] >= 10 > read[1], read


class _Suffixes(StoreWrapper):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.suffixes: list[str] = []

    async def get_suffix(self, key: str, length: int):  # type: ignore[no-untyped-def]
        self.suffixes.append(key)
        return await self.inner.get_suffix(key, length)


@pytest.mark.parametrize("batches_max", [12, 30])
async def test_more_batches_than_the_index_holds_can_still_be_read(
    store: CountingStore, sources: Sources, batches_max: int
) -> None:
    limits = BundleLimits(cache_bytes_max=0, index_batches_max=batches_max, background_compaction=False)
    context = bundle_context(store, sources, limits)
    async with opened(context) as owner:
        for i in range(50):
            await produce(owner, batch(b"%d" % i), batch(b"p%d" % i, partition=1))
        assert owner._ledger.view.index.batches <= batches_max
        assert await fetch_values(owner, 0) == [b"%d" % i for i in range(50)]
        assert await fetch_values(owner, 1) == [b"p%d" % i for i in range(50)]
        assert owner._ledger.view.index.batches <= batches_max
        assert await owner.list_offset(TOPIC, 0, 1) == 50


FAR_BEHIND = BundleLimits(index_batches_max=20, far_batches_max=4000, background_compaction=False)


async def far_behind(store: CountingStore, sources: Sources, limits: BundleLimits = FAR_BEHIND) -> Lists:
    """60 segments, each with a batch of each of three partitions; the next owner has room for a
    few of them.
    """
    async with opened(bundle_context(store, sources)) as owner:
        for number in range(60):
            await produce(owner, *(batch(b"%d" % number, partition=partition) for partition in range(3)))
    await advance_checkpoint(ledger_of(store, sources=sources))
    return Lists(store)


async def test_partitions_that_are_far_behind_share_one_walk_through_the_history(
    store: CountingStore, sources: Sources
) -> None:
    """The first caller's look, and one for all that came meanwhile; it was one for each partition."""
    counting = await far_behind(store, sources)
    async with opened(bundle_context(counting, sources, FAR_BEHIND)) as owner:
        before = counting.lists
        assert await fetch_values(owner, 0, 59) == [b"59"]
        one_look = counting.lists - before
        before = counting.lists
        found = await asyncio.gather(*(fetch_values(owner, partition, 10) for partition in range(3) for _ in range(4)))
        assert found == [[b"%d" % number for number in range(10, 60)]] * 12
        assert one_look <= counting.lists - before <= 2 * one_look


async def test_a_reader_that_is_far_behind_does_not_push_out_what_another_needs(
    store: CountingStore, sources: Sources
) -> None:
    """One look takes an eighth of the room: here the next 40 batches of the partition."""
    limits = BundleLimits(cache_bytes_max=0, index_batches_max=20, far_batches_max=320, background_compaction=False)
    counting = await far_behind(store, sources)
    async with opened(bundle_context(counting, sources, limits)) as owner:
        await owner.fetch(TOPIC, 0, 0, 1)
        await owner.fetch(TOPIC, 1, 20, 1)
        before = counting.lists
        for number in range(30):
            for partition, first in ((0, 0), (1, 20)):
                found = await owner.fetch(TOPIC, partition, first + number, 1)
                assert found.batches[0].base_offset == first + number
        assert counting.lists == before
        assert sum(map(len, owner._ledger.view._far.values())) <= 320

"""Where fetched bytes come from: tail cache, ranges of segments, Parquet; and what happens when
they vanish meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from ledgermq.errors import DataDamaged, NotOwner, OffsetOutOfRange, Unavailable
from ledgermq.sources import Sources
from ledgermq_broker.bundle.shared.context import BundleContext, BundleLimits, BundleMetrics
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.log.checkpoint import newest_checkpoint
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrapper import StoreWrapper
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_bundle
from tests.stores.one_put import OnePut
from tests.worlds.bundles import TOPIC, bundle_context, fetch_values, opened, produce
from tests.worlds.ledgers import batch, ledger_of

NO_CACHE = BundleLimits(cache_bytes_max=0, background_compaction=False)


class Sums(BundleMetrics):
    """Bytes fetched, by where they came from."""

    def __init__(self) -> None:
        self.sources: Counter[str] = Counter()

    def fetched(self, bundle: int, source: str, size_bytes: int) -> None:
        self.sources[source] += size_bytes


class CountingStore(StoreWrapper):
    """`ranges`: (key, length) of each range GET. `gate`: while closed, range GETs wait."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.ranges: list[tuple[str, int]] = []
        self.running = self.running_most = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.ranges.append((key, length))
        self.running += 1
        self.running_most = max(self.running_most, self.running)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            return await self.inner.get_range(key, start, length)
        finally:
            self.running -= 1


@pytest.fixture
def store(sources: Sources) -> CountingStore:
    return CountingStore(MemoryStore("reads", sources))


async def compact(context: BundleContext) -> None:
    """What a Spark job, or another process, does beside the owner."""
    engine = LocalEngine(context.sources, run_inline)
    report = await compact_bundle(
        Compaction(context.store, context.cluster, context.sources, engine), 1, context.catalog(), everything=True
    )
    assert report is not None


async def segments(store: ObjectStore) -> list[int]:
    return [keys.number(info.key) async for info in store.list(keys.segments(1))]


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
    counting = _Lists(store)
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


class _Lists(StoreWrapper):
    lists = 0

    async def list(self, prefix: str, start_after: str = ""):  # type: ignore[no-untyped-def]
        self.lists += 1
        await asyncio.sleep(0)  # so that callers side by side meet
        async for info in self.inner.list(prefix, start_after):
            yield info


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


async def far_behind(store: CountingStore, sources: Sources, limits: BundleLimits = FAR_BEHIND) -> _Lists:
    """60 segments, each with a batch of each of three partitions; the next owner has room for a
    few of them.
    """
    async with opened(bundle_context(store, sources)) as owner:
        for number in range(60):
            await produce(owner, *(batch(b"%d" % number, partition=partition) for partition in range(3)))
    await advance_checkpoint(ledger_of(store, sources=sources))
    return _Lists(store)


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


async def test_a_reader_goes_on_in_parquet_when_segments_are_trimmed_under_it(
    store: CountingStore, sources: Sources
) -> None:
    sums = Sums()
    context = bundle_context(store, sources, NO_CACHE, sums)
    async with opened(context) as owner:
        for i in range(5):
            await produce(owner, batch(b"%d" % i, b"%d+" % i))
        assert len(await fetch_values(owner, 0)) == 10
        await compact(context)
        assert len(await segments(store)) == 1  # the claim
        values = await fetch_values(owner, 0)
        assert values == [v for i in range(5) for v in (b"%d" % i, b"%d+" % i)]
        assert sums.sources["parquet"] > 0
        await produce(owner, batch(b"new"))
        assert await fetch_values(owner, 0, 3) == [*values[3:], b"new"]
        assert await fetch_values(owner, 0, 10) == [b"new"]


@pytest.mark.parametrize("late", [b"another value", b"", b"a value that is longer by far than what was there"])
async def test_a_slot_that_is_filled_again_after_it_was_trimmed_is_not_damaged(
    store: CountingStore, sources: Sources, late: bytes
) -> None:
    """Puts of an owner that had lost its bundle landed when their slots were deleted already;
    others had these in their index still.
    """
    elsewhere = MemoryStore("of the zombie", sources)
    async with (
        opened(bundle_context(elsewhere, sources)) as zombie,
        opened(bundle_context(store, sources, NO_CACHE)) as owner,
    ):
        for i in range(5):
            await produce(zombie, batch(late))
            await produce(owner, batch(b"%d" % i))
        values = await fetch_values(owner, 0)
        trimmed = await segments(store)
        await compact(bundle_context(store, sources))
        for slot in set(trimmed) - set(await segments(store)):
            await store.put_if_absent(keys.segment(1, slot), [await elsewhere.get(keys.segment(1, slot))])
        assert await segments(store) == trimmed
        assert await fetch_values(owner, 0) == values


async def test_readers_that_are_surprised_together_look_once(store: CountingStore, sources: Sources) -> None:
    counting = _Lists(store)
    async with opened(bundle_context(counting, sources, NO_CACHE)) as owner:
        for i in range(5):
            await produce(owner, batch(b"%d" % i))
        await compact(bundle_context(store, sources))
        before = counting.lists
        values = await asyncio.gather(*(fetch_values(owner, 0, offset % 5) for offset in range(50)))
        assert values[0] == [b"%d" % i for i in range(5)]
        assert counting.lists - before <= 3


async def test_cached_records_need_no_parquet(store: CountingStore, sources: Sources) -> None:
    sums = Sums()
    context = bundle_context(store, sources, metrics=sums)
    async with opened(context) as owner:
        await produce(owner, batch(b"a"), batch(b"b"))
        await compact(context)
        await owner._ledger.view.look()
        assert await fetch_values(owner, 0) == [b"a", b"b"]
    assert list(sums.sources) == ["cache"]


async def test_a_new_owner_reads_parquet_and_segments_as_one(store: CountingStore, sources: Sources) -> None:
    context = bundle_context(store, sources)
    async with opened(context) as owner:
        await produce(owner, *[batch(b"%d" % i) for i in range(5)])
        await compact(context)
        await produce(owner, *[batch(b"%d" % i) for i in range(5, 8)])
    async with opened(context) as owner:
        assert await fetch_values(owner, 0) == [b"%d" % i for i in range(8)]
        assert await owner.list_offset(TOPIC, 0, "earliest") == 0


async def test_below_the_log_start_is_out_of_range(store: CountingStore, sources: Sources) -> None:
    context = bundle_context(store, sources)
    async with opened(context) as owner:
        await produce(owner, *[batch(b"%d" % i) for i in range(5)])
        await compact(context)

        def move(draft):  # type: ignore[no-untyped-def]
            draft.partitions[0].log_start = 3
            return True

        await advance_checkpoint(ledger_of(store, 1, sources=sources), move)
        await owner._ledger.view.look()
        assert await owner.list_offset(TOPIC, 0, "earliest") == 3
        with pytest.raises(OffsetOutOfRange, match="offset 2 is not between log start 3 and end 5"):
            await owner.fetch(TOPIC, 0, 2, 100)
        assert await fetch_values(owner, 0, 3) == [b"3", b"4"]


async def test_a_segment_that_is_gone_without_a_reason_is_damage_and_is_named(
    store: CountingStore, sources: Sources
) -> None:
    async with opened(bundle_context(store, sources, NO_CACHE)) as owner:
        await produce(owner, batch(b"a"))
        await produce(owner, batch(b"b", partition=1))
        await store.delete([keys.segment(1, 2)])
        with pytest.raises(DataDamaged) as caught:
            await fetch_values(owner, 0)
        assert caught.value.object_key == keys.segment(1, 2)
        assert await fetch_values(owner, 1) == [b"b"]  # others go on
        assert await produce(owner, batch(b"c")) == [1]


async def test_flipped_bits_in_a_batch_are_damage_and_are_named(store: CountingStore, sources: Sources) -> None:
    async with opened(bundle_context(store, sources, NO_CACHE)) as owner:
        await produce(owner, batch(b"a" * 100), batch(b"b", partition=1))
        key = keys.segment(1, 2)
        data = bytearray(await store.get(key))
        data[data.index(b"aaaa")] ^= 1
        await store.put(key, bytes(data))
        with pytest.raises(DataDamaged, match="checksum") as caught:
            await fetch_values(owner, 0)
        assert caught.value.object_key == key
        assert await fetch_values(owner, 1) == [b"b"]


@pytest.mark.parametrize("how", ["flipped", "gone", "cut short"])
async def test_damage_hides_nothing_that_stands_before_or_behind_it(
    store: CountingStore, sources: Sources, how: str
) -> None:
    async with opened(bundle_context(store, sources, NO_CACHE)) as owner:
        await produce(owner, batch(b"0"), batch(b"1"))
        await produce(owner, batch(b"2" * 100), batch(b"3" * 100))
        await produce(owner, batch(b"4"))
        key = keys.segment(1, 3)
        data = await store.get(key)
        if how == "gone":
            await store.delete([key])
        else:
            at = data.index(b"3333")
            await store.put(key, data[:at] if how == "cut short" else data[:at] + b"x" + data[at + 1 :])
        good, bad = ([b"0", b"1"], 2) if how == "gone" else ([b"0", b"1", b"2" * 100], 3)
        found = await owner.fetch(TOPIC, 0, 0, 1 << 20)
        assert found.batches[-1].end == len(good)
        with pytest.raises(DataDamaged) as caught:
            await owner.fetch(TOPIC, 0, bad, 1 << 20)
        assert caught.value.object_key == key
        assert await fetch_values(owner, 0, 4) == [b"4"]


async def test_a_fetch_that_outlives_its_term_tells_nothing(store: CountingStore, sources: Sources) -> None:
    async with opened(bundle_context(store, sources, NO_CACHE)) as owner:
        await produce(owner, batch(b"a"))
        store.gate.clear()
        fetch = asyncio.create_task(owner.fetch(TOPIC, 0, 0, 100))
        await asyncio.sleep(0)
        await owner.close()
        store.gate.set()
        with pytest.raises(NotOwner):
            await fetch


async def test_a_checkpoint_of_a_later_epoch_ends_the_term(store: CountingStore, sources: Sources) -> None:
    context = bundle_context(store, sources)
    async with opened(context) as first, opened(context):
        await advance_checkpoint(ledger_of(store, 1, sources=sources))
        assert (await newest_checkpoint(store, 1)).state.epoch == first.epoch + 1
        await first._ledger.view.look()
        await first.ended.wait()
        with pytest.raises(NotOwner):
            await first.fetch(TOPIC, 0, 0, 100)


class HeldAnswers(OnePut):
    """Puts of segments happen at once; while `gate` is closed their answers wait."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self.inner.put_if_absent(key, buffers)
        if key.startswith(keys.segments(1)):
            await self.gate.wait()


async def test_parquet_that_is_ahead_of_the_acknowledgement_is_not_read_above_the_high_watermark(
    sources: Sources,
) -> None:
    """A rival compacts a segment that has landed while the owner still waits for the store's
    answer.
    """
    store = HeldAnswers(MemoryStore("held", sources))
    context = bundle_context(store, sources, NO_CACHE)
    async with opened(context) as owner:
        await produce(owner, batch(b"a"))
        store.gate.clear()
        second = asyncio.create_task(produce(owner, batch(b"b")))
        while len(await segments(store)) < 3:
            await asyncio.sleep(0)
        await compact(context)
        with pytest.raises(Unavailable):
            await owner.fetch(TOPIC, 0, 0, 1 << 20)
        store.gate.set()
        assert await second == [1]
        assert await fetch_values(owner, 0) == [b"a", b"b"]


async def test_parquet_of_the_next_owner_ends_the_term_and_nothing_else(sources: Sources) -> None:
    store = MemoryStore("next", sources)
    context = bundle_context(store, sources, NO_CACHE)
    async with opened(context) as zombie:
        await produce(zombie, batch(b"a"))
        async with opened(bundle_context(store, sources, NO_CACHE, broker="b")) as owner:
            await produce(owner, batch(b"b"))
            await compact(context)
            with pytest.raises(NotOwner):
                await zombie.fetch(TOPIC, 0, 0, 1 << 20)
            assert await fetch_values(owner, 0) == [b"a", b"b"]

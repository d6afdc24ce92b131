"""Fetches where segments became Parquet, are gone or damaged, or the term is over."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import DataDamaged, NotOwner, OffsetOutOfRange, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.unit.bundle.counted_reads import (
    NO_CACHE,
    CountingStore,
    HeldAnswers,
    Lists,
    Sums,
    compact,
    counting_store,
    segments,
)
from tests.worlds.bundles import TOPIC, bundle_context, fetch_values, opened, produce
from tests.worlds.ledgers import batch, ledger_of

store = pytest.fixture(counting_store)


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
    counting = Lists(store)
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

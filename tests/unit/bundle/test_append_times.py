"""Which batches get the time of their append, and by which clock."""

from __future__ import annotations

from dataclasses import replace

from crc32c import crc32c

from ledgermq.protocol.batches.records import decode_batch
from ledgermq.sources import Sources
from ledgermq_broker.bundle.committing.append_times import AppendTimes
from ledgermq_broker.bundle.shared.context import BundleLimits
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.topics.settings import parse_settings
from ledgermq_ledger.topics.topic import Topic
from tests.worlds.bundles import TOPIC, bundle_context, opened, produce
from tests.worlds.ledgers import batch, session

RAW = {"message.timestamp.type": "LogAppendTime"}
STAMPED = Topic(TOPIC.id + 1, "stamped", (1,), RAW, parse_settings(RAW))


def times_of(clock: list[int | None], last_us: int = 0, own_us: int = 500) -> AppendTimes:
    """`clock`: what the store's clock shows, one call after the other."""
    sources = Sources(now_us=lambda: own_us)
    context = replace(bundle_context(MemoryStore("t", sources), sources), store_us=lambda: clock.pop(0))
    context.catalog().topics_by_id[STAMPED.id] = STAMPED
    return AppendTimes(context, last_us)


def test_only_batches_of_topics_that_want_it_change() -> None:
    own, other, unknown = (batch(b"a", b"b", topic_id=topic) for topic in (STAMPED.id, TOPIC.id, 99))
    times = times_of([1000])
    assert times.stamped([other, unknown]) == [other, unknown]
    changed, *same = times.stamped([own, other, unknown])
    assert same == [other, unknown]
    assert (changed.timestamp_min_us, changed.timestamp_max_us, changed.append_us) == (1000, 1000, 1000)
    assert changed.crc == crc32c(changed.data) != own.crc
    rows = decode_batch(changed.data)
    assert [moment.value for moment in rows.column("timestamp")] == [1000, 1000]
    assert rows.column("value").to_pylist() == [b"a", b"b"]


def test_times_never_go_back_neither_within_a_term_nor_below_the_terms_before() -> None:
    times = times_of([1000, 900, 1001, 1500, 1400], last_us=1200)
    stamps = [times.stamped([batch(b"a", topic_id=STAMPED.id)])[0].append_us for _ in range(5)]
    assert stamps == [1200, 1200, 1200, 1500, 1500]


def test_times_go_on_behind_those_of_a_partition_that_came() -> None:
    times = times_of([1000, 1001, 6000])
    stamps = []
    for least in (0, 5000, 10):
        times.not_before(least)
        stamps.append(times.stamped([batch(b"a", topic_id=STAMPED.id)])[0].append_us)
    assert stamps == [1000, 5000, 6000]


def test_this_machine_s_clock_counts_until_the_store_s_is_known() -> None:
    times = times_of([None, 700, 1000], own_us=800)
    stamps = [times.stamped([batch(b"a", topic_id=STAMPED.id)])[0].append_us for _ in range(3)]
    assert stamps == [800, 800, 1000]


async def test_a_repeated_batch_that_left_the_memory_is_answered_with_its_time() -> None:
    sources = Sources(now_us=lambda: clock[0])
    clock = [1_000_000]
    limits = BundleLimits(cache_bytes_max=0, index_batches_max=2, background_compaction=False)
    context = bundle_context(MemoryStore("t", sources), sources, limits)
    context.catalog().topics_by_id[TOPIC.id] = replace(TOPIC, settings=parse_settings(RAW))
    async with opened(context) as owner:
        first = batch(b"a", b"b", producer=session(0))
        assert await produce(owner, first) == [0]
        for _ in range(20):
            clock[0] += 1_000_000
            await produce(owner, batch(b"x"))
        clock[0] += 1_000_000
        assert await produce(owner, first) == [0], "it is known as repeated"
        found = owner._ledger.view.index.partitions[PartitionId(TOPIC.id, 0)]
        assert found.at(0) is None, "its place is no longer in memory"
        assert await owner.append_us(first, 0) == 1_000_000
        context.catalog().topics_by_id[TOPIC.id] = TOPIC
        assert await owner.append_us(first, 0) == 0


async def test_a_repeated_batch_whose_object_is_damaged_is_answered_without_a_time() -> None:
    sources = Sources(now_us=lambda: 1_000_000)
    store = MemoryStore("t", sources)
    limits = BundleLimits(cache_bytes_max=0, index_batches_max=2, background_compaction=False)
    context = bundle_context(store, sources, limits)
    context.catalog().topics_by_id[TOPIC.id] = replace(TOPIC, settings=parse_settings(RAW))
    async with opened(context) as owner:
        for _ in range(20):
            await produce(owner, batch(b"a"))
        for found in [found async for found in store.list("")]:
            await store.put(found.key, b"damaged")
        assert await owner.append_us(batch(b"a"), 0) == 0

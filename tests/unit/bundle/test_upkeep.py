"""Checkpoints, news and background compaction of a term, in virtual time; none of it ends the term,
none of it runs when idle.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from ledgermq.errors import ResourceExhausted
from ledgermq.sources import Sources
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext, BundleLimits, BundleMetrics
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.internal_topic import INTERNAL_SEGMENTS
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.report import MergeReport, RoundReport
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_ledger.topics.settings import TopicSettings
from ledgermq_ledger.topics.topic import Topic
from tests.stores.faulty import Faults, FaultyStore
from tests.virtual_time import virtual_in, virtual_sources
from tests.worlds.bundles import QUIET, TOPIC, bundle_context, fetch_values, opened, produce
from tests.worlds.ledgers import TOPIC_ID, batch, ledger_of


class Counts(BundleMetrics):
    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()
        self.checkpoints = 0
        self.rounds = 0
        self.merged_files: list[int] = []

    def merged(self, report: MergeReport) -> None:
        self.merged_files.append(report.files)

    def compacted(self, report: RoundReport) -> None:
        self.rounds += 1

    def upkeep_failed(self, bundle: int, work: str, error: BaseException) -> None:
        self.failed[work] += 1

    def checkpointed(self, bundle: int, number: int) -> None:
        self.checkpoints += 1


@asynccontextmanager
async def upkeep() -> AsyncIterator[tuple[FaultyStore, Sources, Counts]]:
    sources = virtual_sources()
    yield FaultyStore(MemoryStore("upkeep", sources), sources), sources, Counts()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left


with_counts = virtual_in(upkeep, "store", "sources", "counts")


def context_of(
    store: ObjectStore, sources: Sources, limits: BundleLimits, metrics: BundleMetrics, topic: Topic = TOPIC
) -> BundleContext:
    context = replace(bundle_context(store, sources, limits, metrics), run_blocking=run_inline)
    catalog = context.catalog()
    catalog.topics_by_id[topic.id] = catalog.topics_by_name[topic.name] = topic
    return context


def quick(lag_ms: int = 60_000, target_bytes: int = 1 << 20) -> Topic:
    return replace(TOPIC, settings=TopicSettings(parquet_max_lag_ms=lag_ms, parquet_target_bytes=target_bytes))


async def checkpoints(store: ObjectStore) -> list[int]:
    return [keys.number(info.key) async for info in store.list(keys.checkpoints(1))]


@with_counts
async def test_a_checkpoint_every_so_many_segments_and_older_ones_go(
    store: FaultyStore, sources: Sources, counts: Counts
) -> None:
    async with opened(context_of(store, sources, replace(QUIET, checkpoint_slots=10), counts)) as owner:
        for i in range(95):
            await produce(owner, batch(b"%d" % i))
            await asyncio.sleep(0.01)
        assert await fetch_values(owner, 0) == [b"%d" % i for i in range(95)]
    assert counts.checkpoints >= 8
    assert len(await checkpoints(store.inner)) == 1
    found = await recover(ledger_of(store.inner, 1))
    assert len(found.tail) <= 11
    assert found.state.end(TOPIC_ID, 0) == 95


@with_counts
async def test_a_checkpoint_after_so_many_bytes(store: FaultyStore, sources: Sources, counts: Counts) -> None:
    async with opened(context_of(store, sources, replace(QUIET, checkpoint_bytes=10_000), counts)) as owner:
        await produce(owner, batch(b"x" * 4000))
        await asyncio.sleep(1)
        assert await checkpoints(store) == []
        await produce(owner, batch(b"x" * 8000))
        await asyncio.sleep(1)
        assert len(await checkpoints(store)) == 1
        await produce(owner, batch(b"x" * 4000))
        await asyncio.sleep(1)
        assert await checkpoints(store) == [1]


@pytest.mark.parametrize("faults", [Faults(), Faults(before=1.0)])
@with_counts
async def test_a_hand_over_leaves_a_short_tail_if_the_store_allows(
    store: FaultyStore, sources: Sources, counts: Counts, faults: Faults
) -> None:
    owner = await BundleOwner.open(1, context_of(store, sources, QUIET, counts))
    for i in range(100):
        await produce(owner, batch(b"%d" % i))
    store.operations, store.faults = frozenset({"list"}), faults
    await owner.release("b")
    store.faults = Faults()
    found = await recover(ledger_of(store, 1))
    assert found.state.released
    assert found.state.end(TOPIC_ID, 0) == 100
    assert len(found.tail) == (1 if faults == Faults() else 102)


@with_counts
async def test_a_failing_checkpoint_never_ends_the_term(store: FaultyStore, sources: Sources, counts: Counts) -> None:
    async with opened(context_of(store, sources, replace(QUIET, checkpoint_slots=5), counts)) as owner:
        store.operations = frozenset({"list"})
        store.faults = Faults(before=1.0)
        for i in range(20):
            assert await produce(owner, batch(b"%d" % i)) == [i]
            await asyncio.sleep(1)
        assert counts.failed["checkpoint"] >= 3
        assert counts.failed["checkpoint"] <= 10  # with back-off
        store.faults = Faults()
        await asyncio.sleep(200)
        assert len(await checkpoints(store)) == 1
        assert not owner.ended.is_set()


@pytest.mark.parametrize(("topic", "after_s"), [(TOPIC, 60), (replace(quick(1000), version=TOPIC_ID + 1), 3600)])
@with_counts
async def test_an_idle_bundle_costs_no_requests(
    store: FaultyStore, sources: Sources, counts: Counts, topic: Topic, after_s: int
) -> None:
    """A topic that was altered may have been keyed; in the end it is known that nothing is left of
    that.
    """

    async with opened(context_of(store, sources, BundleLimits(), counts, topic)) as owner:
        await produce(owner, batch(b"a"))
        await asyncio.sleep(after_s)
        assert (counts.rounds, owner._ledger.view.parquet_end(PartitionId(TOPIC_ID, 0))) == (
            (0, 0) if topic is TOPIC else (1, 1)
        )
        before = store.calls.copy()
        await asyncio.sleep(1800)
        assert store.calls == before


@with_counts
async def test_small_files_are_merged_after_the_round_that_completes_a_run(
    store: FaultyStore, sources: Sources, counts: Counts
) -> None:
    settings = TopicSettings(parquet_max_lag_ms=1000, parquet_merge_files=2)
    topic = replace(TOPIC, settings=settings)
    async with opened(context_of(store, sources, BundleLimits(), counts, topic)) as owner:
        for value in (b"a", b"b", b"c"):
            await produce(owner, batch(value))
            await asyncio.sleep(120)
        assert (counts.rounds, counts.merged_files) == (3, [2])
        assert await fetch_values(owner, 0) == [b"a", b"b", b"c"]


@with_counts
async def test_a_merge_that_fails_is_logged_and_holds_up_nothing(
    store: FaultyStore, sources: Sources, counts: Counts
) -> None:
    topic = replace(TOPIC, settings=TopicSettings(parquet_max_lag_ms=1000, parquet_merge_files=2))
    async with opened(context_of(store, sources, BundleLimits(), counts, topic)) as owner:
        await produce(owner, batch(b"a"))
        await asyncio.sleep(120)
        assert isinstance(store.inner, MemoryStore)
        [key] = [info.key async for info in store.inner.list(keys.PARQUET)]
        data = bytearray(await store.inner.get(key))
        data[10] ^= 1
        await store.inner.put(key, bytes(data))
        for value in (b"b", b"c"):
            await produce(owner, batch(value))
            await asyncio.sleep(120)
        assert (counts.rounds, counts.merged_files, counts.failed) == (3, [], {"merging": 2})


@with_counts
async def test_a_bundle_in_use_follows_checkpoints_of_others_at_intervals(
    store: FaultyStore, sources: Sources, counts: Counts
) -> None:
    context = context_of(store, sources, QUIET, counts)
    async with opened(context) as owner:
        await produce(owner, batch(b"a"))
        engine = LocalEngine(sources, run_inline)
        assert await compact_bundle(
            Compaction(store, context.cluster, sources, engine), 1, context.catalog(), everything=True
        )
        await produce(owner, batch(b"b"))
        lists = store.calls["list"]
        for _ in range(300):
            await fetch_values(owner, 0)
            await asyncio.sleep(0.1)
        assert owner._ledger.view.checkpoint.finished_plan == 1
        assert store.calls["list"] - lists <= 3


@with_counts
async def test_segments_of_internal_topics_alone_are_trimmed_in_the_end(
    store: FaultyStore, sources: Sources, counts: Counts
) -> None:
    """Rounds of internal topics come often and trim nothing; the hour's round does, though by then
    nothing is behind the snapshot.
    """

    internal = Topic(TOPIC_ID, "__internal", (1,))
    async with opened(context_of(store, sources, BundleLimits(checkpoint_slots=100), counts, internal)) as owner:
        while owner.durable_end(internal, 0) < INTERNAL_SEGMENTS:
            await produce(owner, batch(b"x"))
            await asyncio.sleep(0.2)
        await asyncio.sleep(300)
        assert owner._ledger.view.parquet_end(PartitionId(TOPIC_ID, 0)) == owner.durable_end(internal, 0)
        await asyncio.sleep(1800)
        plans = owner._ledger.view.checkpoint.finished_plan
        assert (await newest_checkpoint(store, 1)).trim_slot == 1
        await asyncio.sleep(2100)
        newest = await newest_checkpoint(store, 1)
        assert newest.trim_slot > INTERNAL_SEGMENTS
        calls = store.calls.copy()
        await asyncio.sleep(7200)
        assert store.calls == calls, "then it is quiet"
        assert (await newest_checkpoint(store, 1)).finished_plan <= plans + 2


@with_counts
async def test_a_look_that_finds_nothing_new_reads_no_checkpoint(
    store: FaultyStore, sources: Sources, counts: Counts
) -> None:
    """A checkpoint may be megabytes, and bundles look every few seconds."""
    async with opened(context_of(store, sources, QUIET, counts)) as owner:
        await produce(owner, batch(b"a"))
        await advance_checkpoint(ledger_of(store, 1, sources=sources))
        assert await owner._ledger.view.look()
        gets = store.calls["get"]
        assert not await owner._ledger.view.look()
        assert store.calls["get"] == gets
        await advance_checkpoint(ledger_of(store, 1, sources=sources))
        gets = store.calls["get"]
        assert await owner._ledger.view.look()
        assert store.calls["get"] == gets + 1


@with_counts
async def test_records_are_in_parquet_after_the_lag_and_readers_notice_nothing(
    store: FaultyStore, sources: Sources, counts: Counts
) -> None:
    context = context_of(store, sources, BundleLimits(cache_bytes_max=0), counts, quick(lag_ms=60_000))
    async with opened(context) as owner:
        expected = []
        for i in range(400):
            expected.append(b"%d" % i)
            assert await produce(owner, batch(expected[-1])) == [i]
            await asyncio.sleep(1)
            if i % 40 == 0:
                assert await fetch_values(owner, 0) == expected
        counters = owner._ledger.view.counters[PartitionId(TOPIC_ID, 0)]
        assert counters.parquet_end >= 320
        assert owner._ledger.view.checkpoint.trim_slot > 300
        left = [info.key async for info in store.list(keys.segments(1))]
        assert len(left) < 110
        assert await fetch_values(owner, 0) == expected
        assert not counts.failed
    async with opened(context) as owner:
        assert await fetch_values(owner, 0) == expected


@with_counts
async def test_records_are_in_parquet_when_a_file_is_full(store: FaultyStore, sources: Sources, counts: Counts) -> None:
    context = context_of(store, sources, BundleLimits(), counts, quick(target_bytes=50_000, lag_ms=10**9))
    async with opened(context) as owner:
        await produce(owner, *[batch(b"x" * 1000) for _ in range(20)])
        await asyncio.sleep(100)
        assert owner._ledger.view.parquet_end(PartitionId(TOPIC_ID, 0)) == 0
        await produce(owner, *[batch(b"x" * 1000) for _ in range(20)])
        await asyncio.sleep(100)
        assert owner._ledger.view.parquet_end(PartitionId(TOPIC_ID, 0)) > 0


@with_counts
async def test_a_new_owner_compacts_what_the_former_one_left(
    store: FaultyStore, sources: Sources, counts: Counts
) -> None:
    context = context_of(store, sources, BundleLimits(), counts, quick())
    async with opened(context) as owner:
        await produce(owner, *[batch(b"%d" % i) for i in range(5)])
    await advance_checkpoint(ledger_of(store, 1, sources=sources))
    async with opened(context) as owner:
        await asyncio.sleep(120)
        assert owner._ledger.view.parquet_end(PartitionId(TOPIC_ID, 0)) == 5


@with_counts
async def test_failing_compaction_is_counted_and_tried_again_and_producing_goes_on(
    store: FaultyStore, sources: Sources, counts: Counts
) -> None:
    context = context_of(store, sources, BundleLimits(), counts, quick(lag_ms=10_000))
    async with opened(context) as owner:
        store.script("fenced_put", *["before"] * 400)
        for i in range(100):
            assert await produce(owner, batch(b"%d" % i)) == [i]
            await asyncio.sleep(1)
        assert counts.failed["compaction"] >= 1
        store._scripts["fenced_put"].clear()
        await asyncio.sleep(600)
        assert owner._ledger.view.parquet_end(PartitionId(TOPIC_ID, 0)) == 100
        assert not owner.ended.is_set()


@with_counts
async def test_rounds_go_on_at_their_pace_while_nothing_can_be_deleted(
    store: FaultyStore, sources: Sources, counts: Counts
) -> None:
    context = context_of(store, sources, BundleLimits(), counts, quick(lag_ms=10_000))
    async with opened(context) as owner:
        store.operations, store.faults = frozenset({"delete"}), Faults(before=1.0)
        for i in range(900):
            await produce(owner, batch(b"%d" % i))
            await asyncio.sleep(1)
        assert owner._ledger.view.parquet_end(PartitionId(TOPIC_ID, 0)) > 860
        assert counts.rounds > 20
        assert 10 <= counts.failed["compaction"] <= 20, "what is tried for nothing is tried less and less"
        assert len([info async for info in store.list(keys.segments(1))]) == 901
        store.faults = Faults()
        await asyncio.sleep(180)
        assert len([info async for info in store.list(keys.segments(1))]) == 1
        assert not owner.ended.is_set()


@with_counts
async def test_a_parked_partition_in_the_way_is_named_when_produce_is_refused(
    store: FaultyStore, sources: Sources, counts: Counts
) -> None:
    context = context_of(store, sources, replace(QUIET, parked_slots_max=20), counts)
    async with opened(context) as owner:
        await produce(owner, batch(b"a"))

        def park(draft: fmt.Checkpoint) -> bool:
            part = draft.partitions.add(topic_id=TOPIC_ID, partition=0)
            part.parked.plan, part.parked.first_slot, part.parked.object_key = 1, 2, keys.segment(1, 2)
            return True

        await advance_checkpoint(ledger_of(store, 1, sources=sources), park)
        await owner._ledger.view.look()
        for _ in range(18):
            await produce(owner, batch(b"a"))
        await produce(owner, batch(b"a"))
        with pytest.raises(ResourceExhausted, match=r"t/0 \(ledgers/0001/segments/0*2\)"):
            await produce(owner, batch(b"a"))
        assert len(await fetch_values(owner, 0)) == 20
        assert (await newest_checkpoint(store, 1)).trim_slot == 1


@with_counts
async def test_old_parquet_files_go_by_retention_though_nothing_is_written(
    store: FaultyStore, sources: Sources, counts: Counts
) -> None:
    settings = TopicSettings(parquet_max_lag_ms=0, retention_ms=3_600_000)
    topic = replace(TOPIC, settings=settings)
    context = context_of(store, sources, BundleLimits(), counts, topic)
    async with opened(context) as owner:
        now_ms = sources.now_ms()
        await produce(owner, batch(b"old", timestamp_ms=now_ms))
        await asyncio.sleep(1800)
        assert await fetch_values(owner, 0, topic=topic) == [b"old"]
        await asyncio.sleep(4000)
        assert await owner.list_offset(topic, 0, "earliest") == 1
        await asyncio.sleep(1300)
        assert [info.key async for info in store.list(keys.PARQUET)] == []
        assert await produce(owner, batch(b"new")) == [1]

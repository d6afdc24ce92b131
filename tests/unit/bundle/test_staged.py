"""A bundle that holds batches of open transactions, or timed messages: its owner reads them, lets go
of them, and refuses producers when they hold too much.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from ledgermq.errors import NotOwner, OffsetOutOfRange, ResourceExhausted
from ledgermq.sources import Sources
from ledgermq_broker.bundle.shared.context import BundleContext, BundleLimits
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.topics.settings import TopicSettings, parse_stored_settings
from ledgermq_ledger.topics.topic import Topic
from tests.virtual_time import virtual_in, virtual_sources
from tests.worlds.bundles import QUIET, TOPIC, bundle_context, fetch_values, opened, produce
from tests.worlds.ledgers import TOPIC_ID, batch

RAW = {"internal.kind": "staged"}
STAGED = Topic(3, keys.STAGED_TOPIC, (1,), RAW, parse_stored_settings(RAW))
PLACE = PartitionId(STAGED.id, 0)
DELAYED = Topic(4, keys.DELAYED_TOPIC, (1, 1, 1, 2), RAW, parse_stored_settings(RAW))


@asynccontextmanager
async def world() -> AsyncIterator[tuple[MemoryStore, Sources]]:
    sources = virtual_sources()
    yield MemoryStore("staged", sources), sources


in_world = virtual_in(world, "store", "sources")


def context_of(store: MemoryStore, sources: Sources, limits: BundleLimits = QUIET) -> BundleContext:
    context = replace(bundle_context(store, sources, limits), run_blocking=run_inline)
    quick = replace(TOPIC, settings=TopicSettings(parquet_max_lag_ms=60_000))
    for topic in (STAGED, DELAYED, quick):
        context.catalog().topics_by_id[topic.id] = context.catalog().topics_by_name[topic.name] = topic
    return context


@in_world
async def test_what_is_below_the_log_start_is_gone_at_once_and_for_the_next_owner(
    store: MemoryStore, sources: Sources
) -> None:
    async with opened(context_of(store, sources)) as owner:
        await produce(owner, batch(b"s0", b"s1", topic_id=STAGED.id), batch(b"a"))
        await produce(owner, batch(b"s2", topic_id=STAGED.id))
        await owner.move_internal_log_starts({PLACE: 2})
        with pytest.raises(OffsetOutOfRange):
            await owner.fetch(STAGED, 0, 0, 1000)
        assert await fetch_values(owner, 0, 2, topic=STAGED) == [b"s2"]
        number = (await newest_checkpoint(store, 1)).number
        await owner.move_internal_log_starts({PLACE: 1})
        assert (await newest_checkpoint(store, 1)).number == number, "it never goes back"
    async with opened(context_of(store, sources)) as owner:
        assert await owner.list_offset(STAGED, 0, "earliest") == 2
        assert await fetch_values(owner, 0, 2, topic=STAGED) == [b"s2"]
    with pytest.raises(NotOwner):
        await owner.move_internal_log_starts({PLACE: 3})


@in_world
async def test_log_starts_of_several_partitions_move_in_one_checkpoint(store: MemoryStore, sources: Sources) -> None:
    async with opened(context_of(store, sources)) as owner:
        await produce(owner, *(batch(b"d", b"d", topic_id=DELAYED.id, partition=p) for p in range(3)))
        await produce(owner, batch(b"s", topic_id=STAGED.id))
        number = (await newest_checkpoint(store, 1)).number
        places = [PartitionId(DELAYED.id, p) for p in range(3)]
        await owner.move_internal_log_starts({places[0]: 1, places[2]: 2, PLACE: 1})
        assert (await newest_checkpoint(store, 1)).number == number + 1
        await owner.move_internal_log_starts({places[0]: 1, PLACE: 0})
        assert (await newest_checkpoint(store, 1)).number == number + 1, "nothing would move"
        starts = [await owner.list_offset(DELAYED, p, "earliest") for p in range(3)]
        assert (starts, await owner.list_offset(STAGED, 0, "earliest")) == ([1, 0, 2], 1)
        with pytest.raises(NotOwner, match="__delayed/3 is in bundle 2"):
            await owner.move_internal_log_starts({PartitionId(DELAYED.id, 3): 1})


@in_world
async def test_background_rounds_go_on_over_staged_batches_and_drop_them_in_time(
    store: MemoryStore, sources: Sources
) -> None:
    async with opened(context_of(store, sources, BundleLimits())) as owner:
        for i in range(20):
            await produce(owner, batch(b"s%d" % i, topic_id=STAGED.id), batch(b"%d" % i, timestamp_ms=i))
            await asyncio.sleep(30)
        await asyncio.sleep(200)
        assert owner._ledger.view.parquet_end(PartitionId(TOPIC_ID, 0)) == 20
        assert owner.status().untrimmed_slots >= 20, "the first of them is the oldest"
        assert await fetch_values(owner, 0, topic=STAGED) == [b"s%d" % i for i in range(20)]
        before = (await newest_checkpoint(store, 1)).finished_plan
        await asyncio.sleep(2 * 3600)
        assert (await newest_checkpoint(store, 1)).finished_plan == before, "they are no reason for a round"
        await owner.move_internal_log_starts({PLACE: 15})
        await asyncio.sleep(400)
        assert owner.status().untrimmed_slots <= 6
        assert await fetch_values(owner, 0, 15, topic=STAGED) == [b"s%d" % i for i in range(15, 20)]
        await owner.move_internal_log_starts({PLACE: 20})
        await asyncio.sleep(400)
        assert owner.status().untrimmed_slots == 0
        assert (await newest_checkpoint(store, 1)).snapshot_plan == 0
        assert await fetch_values(owner, 0) == [b"%d" % i for i in range(20)]


@in_world
async def test_producers_are_refused_when_open_transactions_hold_too_many_segments(
    store: MemoryStore, sources: Sources
) -> None:
    async with opened(context_of(store, sources, replace(QUIET, parked_slots_max=20))) as owner:
        for _ in range(30):
            await produce(owner, batch(b"a"))
        owner.check_admission()  # many segments, but no transaction holds them
        await produce(owner, batch(b"s0", topic_id=STAGED.id))
        for _ in range(19):
            await produce(owner, batch(b"a"))
        owner.check_admission()
        await produce(owner, batch(b"a"))
        with pytest.raises(
            ResourceExhausted, match=r"bundle 1: 21 segments .* __staged/0 .* open transactions"
        ) as refused:
            owner.check_admission()
        assert refused.value.retry_after_ms
        await produce(owner, batch(b"s1", topic_id=STAGED.id))  # what ends a transaction passes
        await owner.move_internal_log_starts({PLACE: 1})
        owner.check_admission()


@in_world
async def test_producers_are_refused_whichever_partition_of_a_bundle_holds_too_many_segments(
    store: MemoryStore, sources: Sources
) -> None:
    async with opened(context_of(store, sources, replace(QUIET, parked_slots_max=20))) as owner:
        await produce(owner, batch(b"d", topic_id=DELAYED.id, partition=2))
        for _ in range(20):
            await produce(owner, batch(b"a"), batch(b"d", topic_id=DELAYED.id, partition=0))
        await produce(owner, batch(b"a"))
        with pytest.raises(
            ResourceExhausted, match=r"bundle 1: 21 segments .* __delayed/0 holds timed messages"
        ) as refused:
            owner.check_admission()
        assert refused.value.retry_after_ms
        await owner.move_internal_log_starts({PartitionId(DELAYED.id, 0): 20})
        with pytest.raises(ResourceExhausted, match=r"bundle 1: 22 segments .* __delayed/2 holds timed messages"):
            owner.check_admission()
        await owner.move_internal_log_starts({PartitionId(DELAYED.id, 2): 1})
        owner.check_admission()

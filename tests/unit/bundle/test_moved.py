"""A broker that owns a bundle which a partition has left, or to which one came."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.client.consuming.fetching.direct_reads import DirectReads
from ledgermq.errors import NotOwner, OffsetOutOfRange, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.sources import Sources
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import is_in_charge
from ledgermq_ledger.log.partitions.moves import open_after
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.topics.settings import parse_settings
from ledgermq_tools.ledger.inspect.checkpoint_report import checkpoint_report
from ledgermq_tools.ledger.inspect.segment_report import segment_report
from tests.stores.backends import file_store
from tests.worlds.bundles import TOPIC, bundle_context, fetch_values, opened, produce
from tests.worlds.ledgers import append_and_wait, batch, ledger_of, own, session

KEY = PartitionId(TOPIC.id, 0)
MOVE = 21
EVERYTHING = 1 << 20


@pytest.fixture
def context(sources: Sources) -> BundleContext:
    return bundle_context(MemoryStore("moved", sources), sources)


async def leave(context: BundleContext) -> None:
    """The partition has three records and moves to bundle 2."""
    writer = await own(context.store, context.sources)
    await append_and_wait(writer, batch(b"a", b"b"), batch(b"x", partition=1), batch(b"c"))
    sealed = writer.seal(KEY, MOVE, 2)
    assert sealed is not None
    await sealed


async def arrive_elsewhere(context: BundleContext) -> None:
    """Bundle 2 opens the partition that has left bundle 1."""
    seal = (await recover(ledger_of(context.store, 1))).state.moves.seal_of(KEY)
    assert seal is not None
    there = await own(context.store, context.sources, bundle=2)
    started = there.open_partition(open_after(seal, 1))
    assert started is not None
    await started


async def arrive(context: BundleContext) -> None:
    """The partition comes from bundle 2, where it has three records, and goes on with one more."""
    there = await own(context.store, context.sources, bundle=2)
    await append_and_wait(there, batch(b"a", b"b", b"c", producer=session(0)))
    sealed = there.seal(KEY, MOVE, 1)
    assert sealed is not None
    await sealed
    seal = there.durable.moves.seal_of(KEY)
    assert seal is not None
    writer = await own(context.store, context.sources)
    await append_and_wait(writer, batch(b"x", partition=1))
    started = writer.open_partition(open_after(seal, 2))
    assert started is not None
    await started
    await append_and_wait(writer, batch(b"d", producer=session(3)))


async def test_what_has_left_is_at_the_other_bundle(context: BundleContext) -> None:
    await leave(context)
    async with opened(context) as owner:
        for offset in (0, 3):
            with pytest.raises(NotOwner, match="has moved to bundle 2") as refused:
                await owner.fetch(TOPIC, 0, offset, EVERYTHING)
        assert refused.value.retriable
        with pytest.raises(NotOwner, match="has moved to bundle 2"):
            await produce(owner, batch(b"d"))
        with pytest.raises(NotOwner, match="has moved to bundle 2"):
            owner.session_slot(*KEY)
        with pytest.raises(NotOwner, match="has moved to bundle 2"):
            await owner.list_offset(TOPIC, 0, "latest")
        assert await produce(owner, batch(b"y", partition=1)) == [1], "other partitions stay"
        assert await owner.list_offset(TOPIC, 1, "latest") == 2


async def test_a_reader_that_waits_is_woken_by_the_seal(context: BundleContext) -> None:
    async with opened(context) as owner:
        await produce(owner, batch(b"a"))
        poll = asyncio.create_task(owner.wait_for_data({KEY: 1}))
        await asyncio.sleep(0)
        sealed = owner._writer.seal(KEY, MOVE, 2)
        assert sealed is not None
        await sealed
        await asyncio.wait_for(poll, 1)


async def test_what_is_stamped_after_an_open_is_no_earlier_than_what_came(context: BundleContext) -> None:
    stamped = replace(TOPIC, settings=parse_settings({"message.timestamp.type": "LogAppendTime"}))
    context.catalog().topics_by_id[TOPIC.id] = stamped
    future_us = context.sources.now_us() + 10**9
    there = await own(context.store, context.sources, bundle=2)
    await append_and_wait(there, replace(batch(b"a"), append_us=future_us))
    sealed = there.seal(KEY, MOVE, 1)
    assert sealed is not None
    await sealed
    seal = there.durable.moves.seal_of(KEY)
    assert seal is not None
    async with opened(context) as owner:
        started = owner._writer.open_partition(open_after(seal, 2))
        assert started is not None
        await started
        later = batch(b"b")
        [offset] = await produce(owner, later)
        assert await owner.append_us(later, offset) == future_us


async def test_the_reports_of_a_segment_and_a_checkpoint_name_what_moved(context: BundleContext) -> None:
    await leave(context)
    await arrive_elsewhere(context)
    await advance_checkpoint(ledger_of(context.store, 1, sources=context.sources))
    left = {"topic_id": TOPIC.id, "partition": 0, "move": MOVE, "what": "left", "offset": 3, "other_bundle": 2}
    for report in (
        await segment_report(context.store, 1, 3),
        await checkpoint_report(context.store, 1, None),
    ):
        assert [table.rows for table in report.tables if table.name == "moved"] == [[left]]
    came = left | {"what": "came", "other_bundle": 1}
    report = await segment_report(context.store, 2, 2)
    assert [table.rows for table in report.tables if table.name == "moved"] == [[came]]


async def test_what_it_had_before_is_located_in_the_ledger_that_it_came_from(tmp_path: Path, sources: Sources) -> None:
    async with file_store(tmp_path / "root", sources) as store:
        context = bundle_context(store, sources)
        await arrive(context)
        async with opened(context) as owner:
            found = [await owner.fetch(TOPIC, 0, offset, EVERYTHING, direct=True) for offset in (0, 2, 3)]
        assert [(each.high_watermark, each.batches) for each in found] == [(4, [])] * 3
        located = [each for read in found for each in read.located]
        assert [(each.batch.base_offset, each.batch.end) for each in located] == [(0, 3), (0, 3), (3, 4)]
        header = pb.FetchHeader(objects=[each.url for each in located])
        for number, each in enumerate(located, 1):
            at = each.batch
            batches = header.partitions.add().batches
            batches.add(object=number, position=at.position, length=at.length, crc=at.crc)
        with ThreadPoolExecutor(1) as threads:
            read = await DirectReads(store.url, threads).read(header)
    values = [decode_batch(data).column("value").to_pylist() for data in read]
    assert values == [[b"a", b"b", b"c"], [b"a", b"b", b"c"], [b"d"]]
    assert [url.partition("/ledgers/")[2].partition("/")[0] for url in header.objects] == ["0002", "0002", "0001"]


async def test_what_came_is_served_with_what_it_had_before(context: BundleContext) -> None:
    await arrive(context)
    async with opened(context) as owner:
        before = await owner.fetch(TOPIC, 0, 1, EVERYTHING)
        assert [(each.base_offset, each.record_count) for each in before.batches] == [(0, 3)]
        assert (before.high_watermark, before.log_start) == (4, 0)
        assert await produce(owner, batch(b"e", producer=session(4)), batch(b"d", producer=session(3))) == [4, 3]
        assert await fetch_values(owner, 0, 3) == [b"d", b"e"]
        assert await owner.list_offset(TOPIC, 0, "durable") == 5
        assert await fetch_values(owner, 0, 0) == [b"a", b"b", b"c", b"d", b"e"]
        for offset in (0, 2):
            with pytest.raises(Unavailable, match="below offset 3 are in bundle 2 until move 21 has ended"):
                await owner.backlog(TOPIC, 0, offset)
        assert (await owner.backlog(TOPIC, 0, 3)).size_bytes > 0
        assert await owner.list_offset(TOPIC, 0, "earliest") == 0
        assert await owner.list_offset(TOPIC, 0, "latest") == 5
        assert owner.session_slot(*KEY) >> 40 == MOVE
        assert owner.session_slot(TOPIC.id, 1) == owner.opened_slot()


class HeldBack(StoreWrapper):
    """Puts a checkpoint only when it may."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked = asyncio.Event()
        self.may_put = asyncio.Event()

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        if key.startswith(keys.checkpoints(2)):
            self.asked.set()
            await self.may_put.wait()
        await super().put_if_absent(key, parts)


async def test_a_deletion_that_a_seal_has_overtaken_counts_where_the_partition_came(context: BundleContext) -> None:
    """It was decided before, and its checkpoint came after the first read of the former ledger."""
    there = await own(context.store, context.sources, bundle=2)
    await append_and_wait(there, batch(b"a", b"b"), batch(b"c"))
    store = HeldBack(context.store)
    late = ledger_of(store, 2, sources=context.sources)
    deletion = asyncio.create_task(advance_checkpoint(late, deletion_move(TOPIC, {0: 2})))
    await store.asked.wait()
    sealed = there.seal(KEY, MOVE, 1)
    assert sealed is not None
    await sealed
    seal = there.durable.moves.seal_of(KEY)
    assert seal is not None
    started = (await own(context.store, context.sources)).open_partition(open_after(seal, 2))
    assert started is not None
    await started
    async with opened(context) as owner:
        assert await owner.list_offset(TOPIC, 0, "earliest") == 0
        store.may_put.set()
        assert await deletion is not None
        assert await owner.list_offset(TOPIC, 0, "earliest") == 2
        with pytest.raises(OffsetOutOfRange):
            await owner.fetch(TOPIC, 0, 0, EVERYTHING)
        assert (await owner.fetch(TOPIC, 0, 2, EVERYTHING)).log_start == 2
        await advance_checkpoint(ledger_of(context.store, 2, sources=context.sources))
        assert await owner.list_offset(TOPIC, 0, "earliest") == 2
        [known] = owner._former._formers.values()
        assert not is_in_charge(known.followed.view.checkpoint, *KEY), "from now on it is not asked for again"


async def test_a_repeated_batch_from_before_the_move_has_its_time(context: BundleContext) -> None:
    stamped = replace(TOPIC, settings=parse_settings({"message.timestamp.type": "LogAppendTime"}))
    context.catalog().topics_by_id[TOPIC.id] = stamped
    there = await own(context.store, context.sources, bundle=2)
    first = batch(b"a", b"b", producer=session(0), timestamp_ms=7)
    await append_and_wait(there, first)
    sealed = there.seal(KEY, MOVE, 1)
    assert sealed is not None
    await sealed
    seal = there.durable.moves.seal_of(KEY)
    assert seal is not None
    started = (await own(context.store, context.sources)).open_partition(open_after(seal, 2))
    assert started is not None
    await started
    async with opened(context) as owner:
        [offset] = await produce(owner, first)
        assert offset == 0
        assert await owner.append_us(first, offset) == 7000


async def test_an_owner_that_slept_over_the_way_back_answers_that_the_partition_is_elsewhere(
    context: BundleContext,
) -> None:
    """Another owner sealed the partition, and it goes on in the ledger that it had come from."""
    await arrive(context)
    async with opened(context) as owner:
        later = await own(context.store, context.sources)
        sealed = later.seal(KEY, MOVE + 1, 2, MOVE)
        assert sealed is not None
        await sealed
        seal = later.durable.moves.seal_of(KEY)
        assert seal is not None
        there = await own(context.store, context.sources, bundle=2)
        back = there.open_partition(open_after(seal, 1))
        assert back is not None
        await back
        await append_and_wait(there, batch(b"e"))
        with pytest.raises(NotOwner, match="is in bundle 2 again") as refused:
            await owner.fetch(TOPIC, 0, 0, EVERYTHING)
        assert refused.value.retriable

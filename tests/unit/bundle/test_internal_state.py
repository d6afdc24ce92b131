"""What a takeover learns of an internal topic: the latest record of each key, however it is spread
over snapshot and segments.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import pytest

from ledgermq.errors import NotOwner
from ledgermq.sources import Sources
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.reading.internal_state import GAP_BYTES_MAX, LatestRecords
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.internal.bundle_log import BundleLog
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.log.segments.segment import read_index
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_ledger.topics.topic import Topic
from tests.stores.counting import CountingStore
from tests.worlds.bundles import bundle_context, opened, produce
from tests.worlds.ledgers import batch, ledger_of

INTERNAL = Topic(50, "__internal", (1, 1))
OTHER = Topic(60, "__other", (1, 1))
BETWEEN = Topic(55, "between", (1,))


class HookedStore(CountingStore):
    """`before_read` runs once, before the first read of records."""

    before_read: Callable[[], Awaitable[None]] | None = None
    snapshots_read = 0

    async def get(self, key: str) -> bytes:
        self.snapshots_read += "/snapshots/" in key
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        hook, self.before_read = self.before_read, None
        if hook is not None:
            await hook()
        return await super().get_range(key, start, length)


@pytest.fixture
def store(sources: Sources) -> HookedStore:
    return HookedStore(MemoryStore("internal", sources))


@pytest.fixture
def context(store: HookedStore, sources: Sources) -> BundleContext:
    found = bundle_context(store, sources)
    found.catalog().apply(INTERNAL.id, b"x", b"")
    for topic in (INTERNAL, OTHER, BETWEEN):
        found.catalog().topics_by_name[topic.name] = found.catalog().topics_by_id[topic.id] = topic
    return found


async def write(
    owner: BundleOwner, sources: Sources, partition: int, topic: Topic = INTERNAL, **values: str | None
) -> None:
    log = BundleLog(owner, sources, lambda error: None)
    records = [LogRecord(key.encode(), None if value is None else value.encode()) for key, value in values.items()]
    log.append({PartitionId(topic.id, partition): records})
    await log.durable()


async def state(owner: BundleOwner, topic: Topic = INTERNAL) -> list[dict[str, str]]:
    return values_of(await owner.internal_state([(topic, [0, 1])]), topic)


def values_of(found: Mapping[PartitionId, LatestRecords], topic: Topic) -> list[dict[str, str]]:
    """The latest values of partitions 0 and 1 by key."""
    values = []
    for latest in (found[PartitionId(topic.id, partition)] for partition in (0, 1)):
        if latest.damage is not None:
            raise latest.damage
        offsets = [record.offset for record, _ in latest.records]
        assert offsets == sorted(offsets)
        values.append({record.key.decode(): (record.value or b"").decode() for record, _ in latest.records})
    return values


async def clean(context: BundleContext) -> None:
    engine = LocalEngine(context.sources, run_inline)
    assert await compact_bundle(
        Compaction(context.store, context.cluster, context.sources, engine), 1, context.catalog(), everything=True
    )


async def test_the_latest_record_of_each_key_and_no_tombstones(
    context: BundleContext, store: HookedStore, sources: Sources
) -> None:
    async with opened(context) as owner:
        assert await state(owner) == [{}, {}]
        await write(owner, sources, 0, a="1", b="1")
        await write(owner, sources, 1, a="other")
        await write(owner, sources, 0, a="2", c="1")
        await write(owner, sources, 0, b=None)
        assert await state(owner) == [{"a": "2", "c": "1"}, {"a": "other"}]


async def test_snapshot_and_tail_and_what_lies_before_the_checkpoint(
    context: BundleContext, store: HookedStore, sources: Sources
) -> None:
    async with opened(context) as owner:
        await write(owner, sources, 0, a="1", b="1", gone="1")
        await write(owner, sources, 1, k="1")
        await produce(owner, batch(b"user's"))
    await clean(context)
    async with opened(context) as owner:
        assert await state(owner) == [{"a": "1", "b": "1", "gone": "1"}, {"k": "1"}]
        await write(owner, sources, 0, a="2", gone=None)
        await write(owner, sources, 0, d="1")
    await advance_checkpoint(
        ledger_of(store, 1, sources=sources)
    )  # newer than the plan: the owner does not know the segments between
    async with opened(context) as owner:
        await write(owner, sources, 1, k="2")
        store.forget()
        assert await state(owner) == [{"a": "2", "b": "1", "d": "1"}, {"k": "2"}]
        assert store.reads["get_range"] == 3, "one for each segment behind the snapshot"
        assert store.reads["get"] <= 3, "the snapshot, and the checkpoint that names it"


async def test_segments_without_such_records_are_not_read(
    context: BundleContext, store: HookedStore, sources: Sources
) -> None:
    """However many came since the snapshot."""
    async with opened(context) as owner:
        await write(owner, sources, 0, a="1")
    await clean(context)
    async with opened(context) as owner:
        for _ in range(20):
            await produce(owner, batch(b"user's"))
    await advance_checkpoint(ledger_of(store, 1, sources=sources))
    async with opened(context) as owner:
        store.forget()
        assert await state(owner) == [{"a": "1"}, {}]
        assert store.reads["get_range"] == store.reads["get_suffix"] == 0
        await write(owner, sources, 1, k="1")
        assert await state(owner) == [{"a": "1"}, {"k": "1"}]


async def test_all_partitions_of_a_segment_come_in_one_read(
    context: BundleContext, store: HookedStore, sources: Sources
) -> None:
    async with opened(context) as owner:
        log = BundleLog(owner, sources, lambda error: None)
        log.append({PartitionId(INTERNAL.id, partition): [LogRecord(b"k", b"v")] for partition in (0, 1)})
        await log.durable()
        store.forget()
        assert await state(owner) == [{"k": "v"}, {"k": "v"}]
        assert store.reads["get_range"] == 1


async def test_a_snapshot_that_is_replaced_while_it_is_read_leaves_nothing_of_the_old_one(
    context: BundleContext, store: HookedStore, sources: Sources
) -> None:
    """The tombstone is in neither the new snapshot nor the tail behind it: who kept what it had
    read would see the key forever.
    """
    async with opened(context) as owner:
        await write(owner, sources, 0, a="1", gone="1")
    await clean(context)
    async with opened(context) as owner:
        await write(owner, sources, 0, gone=None)

        async def cleaned_meanwhile() -> None:
            await clean(context)  # trims what is about to be read
            await produce(owner, batch(b"x"))

        store.before_read = cleaned_meanwhile
        assert await state(owner) == [{"a": "1"}, {}]


async def test_damage_is_one_partitions_and_names_its_object(
    context: BundleContext, store: HookedStore, sources: Sources
) -> None:
    async with opened(context) as owner:
        await write(owner, sources, 0, a="1")
        await write(owner, sources, 1, b="1")
        key = keys.segment(1, 2)
        entry = (await read_index(store, 1, 2)).index.batches[0]
        assert entry.partition == 0
        good = bytearray(await store.get(key))
        good[entry.position + entry.length // 2] ^= 1
        await store.inner.put(key, bytes(good))
        found = await owner.internal_state([(INTERNAL, [0, 1])])
        assert found[PartitionId(INTERNAL.id, 0)].damage is not None
        assert found[PartitionId(INTERNAL.id, 0)].damage.object_key == key
        assert (found[PartitionId(INTERNAL.id, 1)].damage, len(found[PartitionId(INTERNAL.id, 1)].records)) == (None, 1)


async def test_records_that_are_in_no_segment_are_damage_not_an_empty_state(
    context: BundleContext, store: HookedStore, sources: Sources
) -> None:
    async with opened(context) as owner:
        await write(owner, sources, 0, a="1")
        await write(owner, sources, 0, b="1")
        owner._ledger.view.index.drop_below(3)
        owner._ledger.view.index.covered_from = 1  # a bug elsewhere: it believes that it knows all
        found = await owner.internal_state([(INTERNAL, [0, 1])])
        assert found[PartitionId(INTERNAL.id, 0)].damage is not None
        assert found[PartitionId(INTERNAL.id, 1)].damage is None


async def test_when_the_term_is_over_nothing_is_told(context: BundleContext, sources: Sources) -> None:
    async with opened(context) as owner:
        await write(owner, sources, 0, a="1")
        await owner.close()
        with pytest.raises(NotOwner):
            await owner.internal_state([(INTERNAL, [0])])


async def test_one_read_of_the_snapshot_serves_several_topics(
    context: BundleContext, store: HookedStore, sources: Sources
) -> None:
    async with opened(context) as owner:
        await write(owner, sources, 0, a="1", gone="1")
        await write(owner, sources, 1, OTHER, b="1")
    await clean(context)
    async with opened(context) as owner:
        await write(owner, sources, 0, OTHER, c="1")
        await write(owner, sources, 0, gone=None)
        before = store.snapshots_read
        found = await owner.internal_state([(INTERNAL, [0, 1]), (OTHER, [0, 1])])
        assert values_of(found, INTERNAL) == [{"a": "1"}, {}]
        assert values_of(found, OTHER) == [{"c": "1"}, {"b": "1"}]
        assert store.snapshots_read == before + 1


@pytest.mark.parametrize(("between_bytes", "reads"), [(0, 1), (1000, 1), (GAP_BYTES_MAX + 1, 2)])
async def test_topics_of_a_segment_come_in_one_read_unless_much_data_lies_between(
    context: BundleContext, store: HookedStore, sources: Sources, between_bytes: int, reads: int
) -> None:
    async with opened(context) as owner:
        log = BundleLog(owner, sources, lambda error: None)
        records = {
            PartitionId(topic.id, p): [LogRecord(b"k", b"v%d" % p)] for topic in (OTHER, INTERNAL) for p in (0, 1)
        }
        log.append(records, [batch(b"x" * between_bytes, topic_id=BETWEEN.id)] if between_bytes else [])
        await log.durable()
        store.forget()
        found = await owner.internal_state([(OTHER, [0, 1]), (INTERNAL, [0, 1])])
        for topic in (INTERNAL, OTHER):
            assert values_of(found, topic) == [{"k": "v0"}, {"k": "v1"}]
        assert store.reads["get_range"] == reads


async def test_damage_of_one_topic_leaves_the_other_readable(
    context: BundleContext, store: HookedStore, sources: Sources
) -> None:
    async with opened(context) as owner:
        log = BundleLog(owner, sources, lambda error: None)
        slot = owner.opened_slot()
        log.append({PartitionId(topic.id, 0): [LogRecord(b"k", b"v")] for topic in (INTERNAL, OTHER)})
        await log.durable()
        key = keys.segment(1, slot)
        entry = next(e for e in (await read_index(store, 1, slot)).index.batches if e.topic_id == OTHER.id)
        bad = bytearray(await store.get(key))
        bad[entry.position + entry.length // 2] ^= 1
        await store.inner.put(key, bytes(bad))
        found = await owner.internal_state([(INTERNAL, [0, 1]), (OTHER, [0, 1])])
        damage = found[PartitionId(OTHER.id, 0)].damage
        assert damage is not None
        assert damage.object_key == key
        assert values_of(found, INTERNAL) == [{"k": "v"}, {}]

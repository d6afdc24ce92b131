"""What a takeover learns of an internal topic: the latest record of each key, however it is spread
over snapshot and segments.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from ledger import keys
from ledger.blocking import run_inline
from ledger.log.recovery import advance_checkpoint
from ledger.log.segment import read_index
from ledger.object_store.memory import MemoryStore
from ledger.parquet.compaction import Compaction
from ledger.parquet.engine import LocalEngine
from ledger.rounds.runner import compact_bundle
from ledger.topics.catalog import Topic
from ledgermq.errors import NotOwner
from ledgermq.sources import Sources
from offsets.records import LogRecord
from stateless_broker.bundle.context import BundleContext
from stateless_broker.bundle.owner import BundleOwner
from stateless_broker.groups.append_log import AppendLog
from tests.stores.counting import CountingStore
from tests.worlds.bundles import bundle_context, opened, produce
from tests.worlds.ledgers import batch, ledger_of

INTERNAL = Topic(50, "__internal", (1, 1))


class HookedStore(CountingStore):
    """`before_read` runs once, before the first read of records."""

    before_read: Callable[[], Awaitable[None]] | None = None

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
    found.catalog().topics_by_name[INTERNAL.name] = found.catalog().topics_by_id[INTERNAL.id] = INTERNAL
    return found


async def write(owner: BundleOwner, sources: Sources, partition: int, **values: str | None) -> None:
    log = AppendLog(owner, INTERNAL.id, partition, sources, lambda error: None)
    log.append([LogRecord(key.encode(), None if value is None else value.encode()) for key, value in values.items()])
    await log.durable()


async def state(owner: BundleOwner) -> list[dict[str, str]]:
    found = await owner.internal_state(INTERNAL, [0, 1])
    for latest in found.values():
        if latest.damage is not None:
            raise latest.damage
        offsets = [record.offset for record, _ in latest.records]
        assert offsets == sorted(offsets)
    return [{record.key.decode(): (record.value or b"").decode() for record, _ in found[p].records} for p in (0, 1)]


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


async def test_all_partitions_of_a_segment_come_in_one_read(
    context: BundleContext, store: HookedStore, sources: Sources
) -> None:
    async with opened(context) as owner:
        one, two = (AppendLog(owner, INTERNAL.id, p, sources, lambda error: None) for p in (0, 1))
        for log in (one, two):
            log.append([LogRecord(b"k", b"v")])
        await one.durable()
        await two.durable()
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
        found = await owner.internal_state(INTERNAL, [0, 1])
        assert found[0].damage is not None
        assert found[0].damage.object_key == key
        assert (found[1].damage, len(found[1].records)) == (None, 1)


async def test_records_that_are_in_no_segment_are_damage_not_an_empty_state(
    context: BundleContext, store: HookedStore, sources: Sources
) -> None:
    async with opened(context) as owner:
        await write(owner, sources, 0, a="1")
        await write(owner, sources, 0, b="1")
        owner._ledger.view.index.drop_below(3)
        owner._ledger.view.index.covered_from = 1  # a bug elsewhere: it believes that it knows all
        found = await owner.internal_state(INTERNAL, [0, 1])
        assert found[0].damage is not None
        assert found[1].damage is None


async def test_when_the_term_is_over_nothing_is_told(context: BundleContext, sources: Sources) -> None:
    async with opened(context) as owner:
        await write(owner, sources, 0, a="1")
        await owner.close()
        with pytest.raises(NotOwner):
            await owner.internal_state(INTERNAL, [0])

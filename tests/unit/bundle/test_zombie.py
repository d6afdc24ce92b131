"""Owners that were killed, paused or fenced: no batch that they had in flight is acknowledged
twice, and their answers mislead no client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ledgermq.errors import NotOwner, OffsetOutOfRange
from ledgermq.sources import Sources
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import Buffer, ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.stores.one_put import OnePut
from tests.worlds.bundles import TOPIC, bundle_context, fetch_values, opened, produce
from tests.worlds.ledgers import STATES_MAX, batch, ledger_of, session


class PausingStore(OnePut):
    """A broker's own view of the store.

    `land`: puts of segments take effect, but their answers wait; without it they do not even land.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()
        self.land = True

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if self.land:
            await self.inner.put_if_absent(key, buffers)
        await self.gate.wait()
        if not self.land:
            await self.inner.put_if_absent(key, buffers)


@pytest.fixture
def store(sources: Sources) -> ObjectStore:
    return MemoryStore("zombie", sources)


@pytest.fixture
def context(store: ObjectStore, sources: Sources) -> BundleContext:
    return bundle_context(store, sources, broker="b")


async def paused(
    store: ObjectStore, sources: Sources, *, land: bool
) -> tuple[BundleOwner, PausingStore, BundleContext]:
    """An owner whose next puts hang."""
    view = PausingStore(store)
    context = bundle_context(view, sources)
    owner = await BundleOwner.open(1, context)
    view.gate.clear()
    view.land = land
    return owner, view, context


async def appears(store: ObjectStore, slot: int) -> None:
    while True:
        try:
            await store.head(keys.segment(1, slot))
            return
        except ObjectMissing:
            await asyncio.sleep(0)


@pytest.mark.parametrize("land", [True, False])
async def test_killed_between_put_and_acknowledgement(
    store: ObjectStore, sources: Sources, context: BundleContext, land: bool
) -> None:
    """Whether the put has landed or not, the retry at the next owner is stored once, and answered
    with its place.
    """
    first, _, _ = await paused(store, sources, land=land)
    request = batch(b"a", b"b", producer=session(0, opened_slot=first.opened_slot()))
    waiting = first.produce([request], durable=True)[0]
    if land:
        await appears(store, 2)
    await asyncio.sleep(0)
    await first.close()
    with pytest.raises(NotOwner):
        await waiting
    async with opened(context) as second:
        assert await produce(second, batch(b"other")) == [2 if land else 0]
        assert await produce(second, request) == [0 if land else 1]
        assert await produce(second, request) == [0 if land else 1]
        values = await fetch_values(second, 0)
        assert values == ([b"a", b"b", b"other"] if land else [b"other", b"a", b"b"])


async def test_a_zombie_that_wakes_drops_everything(
    store: ObjectStore, sources: Sources, context: BundleContext
) -> None:
    zombie, view, its_context = await paused(store, sources, land=False)
    in_flight = zombie.produce([batch(b"in flight")], durable=True)
    await asyncio.sleep(0)
    poll = asyncio.create_task(zombie.wait_for_data({PartitionId(TOPIC.id, 0): 0}))
    queued = zombie.produce([batch(b"queued"), batch(b"queued too")], durable=True)
    async with opened(context) as owner:
        await produce(owner, batch(b"new"))
        view.gate.set()
        for waiting in (*in_flight, *queued):
            with pytest.raises(NotOwner):
                await waiting
        await poll
        with pytest.raises(NotOwner):
            await zombie.fetch(TOPIC, 0, 0, 100)
        with pytest.raises(NotOwner):
            zombie.opened_slot()
        await asyncio.sleep(0)
        assert its_context.produce_memory.taken == 0
        assert its_context.tail_cache.size_bytes == 0
        assert await fetch_values(owner, 0) == [b"new"]
    await zombie.close()


async def test_a_consumer_that_is_ahead_of_a_zombie_is_not_sent_back(
    store: ObjectStore, sources: Sources, context: BundleContext
) -> None:
    async with opened(bundle_context(store, sources)) as zombie:
        await produce(zombie, batch(b"a"))
        async with opened(context) as owner:
            await produce(owner, batch(b"b"), batch(b"c"))
            with pytest.raises(NotOwner):
                await zombie.fetch(TOPIC, 0, 3, 100)
            with pytest.raises(OffsetOutOfRange):
                await owner.fetch(TOPIC, 0, 4, 100)


async def test_a_zombie_calls_no_old_end_the_latest_nor_a_time_the_future(
    store: ObjectStore, sources: Sources, context: BundleContext
) -> None:
    """Its own put landed, was trimmed and deleted while it slept: an empty slot of its own must not
    end the look for a claim.
    """
    for at in ("latest", 10**15):
        zombie, view, _ = await paused(store, sources, land=True)
        in_flight = zombie.produce([batch(b"landed")], durable=True)[0]
        slot = zombie.opened_slot()
        await appears(store, slot)
        async with opened(context) as owner:
            await produce(owner, batch(b"more"))

            def trim(draft) -> bool:  # type: ignore[no-untyped-def]
                draft.trim_slot = draft.state.slot + 1
                return True

            await advance_checkpoint(ledger_of(store, 1, sources=sources), trim)
            await store.delete([keys.segment(1, slot)])
            with pytest.raises(NotOwner):
                await zombie.list_offset(TOPIC, 0, at)  # type: ignore[arg-type]
        with pytest.raises(NotOwner):
            await in_flight
        view.gate.set()
        await zombie.close()


async def test_the_opened_slot_is_below_every_slot_that_the_producer_may_get(
    store: ObjectStore, sources: Sources, context: BundleContext
) -> None:
    """Slots in flight may be lost, and a later owner then uses lower ones: so they do not count."""
    first, _, _ = await paused(store, sources, land=False)
    waiting = [first.produce([batch(b"x")], durable=True)[0]]
    await asyncio.sleep(0)
    opened_slot = first.opened_slot()
    await first.close()
    async with opened(context) as second:
        await produce(second, batch(b"a", producer=session(0, opened_slot=opened_slot)))
        state = second._writer.durable.producers
        for producer in range(2, STATES_MAX + 2):
            await produce(second, batch(b"a", producer=session(0, producer, second.opened_slot())))
        assert state.forgotten_to >= opened_slot
        with pytest.raises(Exception, match="forgotten"):
            await produce(second, batch(b"a", producer=session(0, opened_slot=opened_slot)))
    with pytest.raises(NotOwner):
        await waiting[0]


async def test_brokers_of_one_name_fence_each_other_like_any_others(
    store: ObjectStore, sources: Sources, context: BundleContext
) -> None:
    async with opened(context) as first, opened(context) as second:
        with pytest.raises(NotOwner):
            await produce(first, batch(b"a"))
        assert await produce(second, batch(b"a")) == [0]
        assert [note.broker for note in second.claims] == ["b", "b"]

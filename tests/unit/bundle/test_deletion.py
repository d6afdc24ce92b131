"""Deletion on demand by an owner that dies at any store operation of it: the log begins where it
began, or where it was told to.
"""

from __future__ import annotations

from functools import partial

import pytest

from ledgermq.errors import LedgerMQError, NotOwner, OffsetOutOfRange
from ledgermq_broker.bundle.deletion import Deleted
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint, partition_of
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from tests.stores.dying import Crash, DyingStore
from tests.virtual_time import run_virtual, virtual, virtual_sources
from tests.worlds.bundles import TOPIC, bundle_context, fetch_values, opened, produce
from tests.worlds.ledgers import batch

VALUES = [b"%d" % i for i in range(6)]


@pytest.mark.parametrize("after_effect", [False, True])
def test_an_owner_may_die_at_every_operation(after_effect: bool) -> None:
    async def dies(at: int) -> bool:
        sources = virtual_sources(at)
        store = MemoryStore("test", sources)
        view = _Switched(store)
        died = False
        async with opened(bundle_context(view, sources)) as owner:
            for value in VALUES:
                await produce(owner, batch(value, topic_id=TOPIC.id, partition=0))
            await produce(owner, batch(b"other", topic_id=TOPIC.id, partition=1))
            view.inner = DyingStore(store, at, after_effect)
            try:
                told = await owner.delete_records(TOPIC, {0: 4, 2: "end"}, dry_run=False)
                assert told == {0: Deleted(0, 4), 2: Deleted(0, 0)}
            except Crash:
                died = True
            view.inner = store
        part = partition_of(await newest_checkpoint(store, 1), TOPIC.id, 0)
        assert (part.log_start, part.deleted_to) in ([(0, 0), (4, 4)] if died else [(4, 4)])
        async with opened(bundle_context(store, virtual_sources(at + 1000), broker="b")) as heir:
            assert await fetch_values(heir, 0, part.log_start) == VALUES[part.log_start :]
            assert await heir.delete_records(TOPIC, {0: 4}, dry_run=False) == {0: Deleted(part.log_start, 4)}
            with pytest.raises(OffsetOutOfRange):
                await fetch_values(heir, 0, 3)
            assert await fetch_values(heir, 0, 4) == VALUES[4:]
            assert await fetch_values(heir, 1) == [b"other"]
        return died

    at = 1
    while run_virtual(partial(dies, at)):
        at += 1
    assert at > 5


class _Switched(StoreWrapper):
    """`inner` may be replaced."""


@virtual
async def test_an_owner_that_was_fenced_meanwhile_does_not_answer() -> None:
    """The log begins there all the same, and a repetition at the successor says so."""
    sources = virtual_sources(1)
    store = MemoryStore("test", sources)
    async with opened(bundle_context(store, sources)) as zombie:
        for value in VALUES:
            await produce(zombie, batch(value, topic_id=TOPIC.id, partition=0))
        async with opened(bundle_context(store, virtual_sources(2), broker="b")) as heir:
            with pytest.raises(NotOwner):
                await zombie.delete_records(TOPIC, {0: 2}, dry_run=False)
            assert await heir.delete_records(TOPIC, {0: 2}, dry_run=False) in (
                {0: Deleted(0, 2)},
                {0: Deleted(2, 2)},
            )
            assert await fetch_values(heir, 0, 2) == VALUES[2:]


@virtual
async def test_one_offset_that_is_too_high_stops_no_other_partition() -> None:
    sources = virtual_sources(1)
    async with opened(bundle_context(MemoryStore("test", sources), sources)) as owner:
        await produce(owner, batch(b"a", b"b", topic_id=TOPIC.id, partition=0))
        told = await owner.delete_records(TOPIC, {0: 1, 1: 1}, dry_run=False)
        assert told[0] == Deleted(0, 1)
        assert isinstance(told[1], LedgerMQError)
        assert told[1].code == "OFFSET_OUT_OF_RANGE"

"""Each kind of damage is made, and found for what it is, at the object that it is in; and nothing
else is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.fsck.check import Checked, check_root
from ledgermq_ledger.garbage.topics.removed import remove as remove_topics
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.log.segments.segment import decode_tail
from ledgermq_ledger.object_store.contract import Buffer, ObjectInfo
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.topics.topic import METADATA, topic_key
from tests.stores.one_put import OnePut
from tests.unit.fsck.damage import (
    DAMAGE,
    KINDS,
    flip,
    flip_batch,
    flip_checkpoint,
    forge,
    forge_checkpoint,
    last_slot,
    open_fence,
    open_plan,
    overlap,
    put,
    set_sequence,
)
from tests.worlds.ledgers import append_and_wait, batch, ledger_of, session
from tests.worlds.roots import Root, parquet_keys


@pytest.fixture
async def root(sources: Sources) -> Root:
    """Topic flights, two partitions in bundle 1: two Parquet files each; then a checkpoint, and
    segments before and after it.
    """
    root = await Root.open(MemoryStore("fsck", sources), sources, bundles=3)
    await root.create_topic("flights", 2, 1)
    for name in ("planes", "airports"):
        await root.produce("flights", (0, [name.encode()] * 5), (1, [b"q"] * 3))
        await root.create_topic(name, 1, 2)
        await root.compact()
    await root.produce("flights", (0, [b"kept"] * 2))
    await advance_checkpoint(ledger_of(root.store, 1, cluster=root.cluster, sources=sources))
    writer = await root.writer(1)
    topic_id = root.topics["flights"].id
    for sequence in (0, 1, 2):
        await append_and_wait(writer, batch(b"tail", topic_id=topic_id, producer=session(sequence)))
    return root


async def check(root: Root, *, quick: bool = False) -> Checked:
    return await check_root(root.store, root.cluster, quick=quick)


@pytest.mark.parametrize("name", KINDS)
async def test_damage_is_found_for_what_it_is(root: Root, name: str) -> None:
    severity, code, make = KINDS[name]
    assert (await check(root)).problems == []
    key = await make(root)
    checked = await check(root)
    assert (severity, code, key) in {(p.severity, p.code, p.object_key) for p in checked.problems}, checked.problems
    assert checked.worst is severity, checked.problems


BATCHES_AND_ROWS = {
    "a bit of a batch",
    "a wrong number of records",
    "bytes that are in no index",
    "a bit of a Parquet file",
    "a bit of a page index",
}


@pytest.mark.parametrize("name", KINDS)
async def test_a_quick_check_finds_all_but_what_is_inside_of_batches_and_rows(root: Root, name: str) -> None:
    severity, code, make = KINDS[name]
    key = await make(root)
    found = {(p.severity, p.code, p.object_key) for p in (await check(root, quick=True)).problems}
    assert ((severity, code, key) in found) == (name not in BATCHES_AND_ROWS), found


async def test_what_is_normal_is_no_damage(root: Root) -> None:
    """Another owner, an open plan, slots that compaction has not deleted yet, a released ledger."""
    slot = await last_slot(root)
    index = decode_tail(await root.store.get(keys.segment(1, slot)), 1, slot).index
    await open_plan(root, slot, index.put_id)
    del root.writers[1]
    await (await root.writer(1)).release("b")
    assert (await check(root)).problems == []


async def test_a_producer_that_was_forgotten_may_begin_again(root: Root) -> None:
    await forge_checkpoint(root, lambda checkpoint: setattr(checkpoint.state, "forgotten_to", 999))
    await forge(root, await last_slot(root), lambda index: set_sequence(index, 0))
    assert (await check(root)).problems == []


async def test_one_damaged_bundle_does_not_hide_what_is_wrong_in_another(root: Root) -> None:
    await flip_checkpoint(root)
    await put(root, keys.segment(2, 77), b"x" * 100)
    found = {
        (problem.code, problem.object_key) for problem in (await check(root)).problems if problem.severity is DAMAGE
    }
    assert {key for _, key in found} >= {keys.checkpoint(1, 3), keys.segment(2, 77)}


async def test_a_check_writes_nothing(root: Root) -> None:
    class ReadOnly(OnePut):
        async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
            raise AssertionError(key)

        async def put(self, key: str, data: Buffer) -> None:
            raise AssertionError(key)

        async def delete(self, keys: Sequence[str]) -> None:
            raise AssertionError(keys)

        async def close_fence(self, fence: str) -> None:
            raise AssertionError(fence)

        async def open_fence(self, fence: str) -> None:
            raise AssertionError(fence)

    await open_fence(root)
    await overlap(root)
    assert (await check_root(ReadOnly(root.store), root.cluster)).worst is DAMAGE


async def test_a_root_that_changes_meanwhile_is_checked_again(root: Root) -> None:
    """A whole round of compaction happens while the first look is under way: nothing of it looks
    like damage.
    """

    class Busy(StoreWrapper):
        rounds = 0

        async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
            if prefix == keys.compactions(1) and self.rounds == 0:
                self.rounds += 1
                await root.compact()
            async for info in self.inner.list(prefix, start_after):
                yield info

    store = Busy(root.store)
    assert (await check_root(store, root.cluster)).problems == []
    assert store.rounds == 1


async def test_a_batch_that_parked_its_partition_is_named_until_it_is_repaired(root: Root) -> None:
    key = await flip_batch(root)
    await root.compact()
    checked = await check(root)
    assert {(p.code, p.object_key) for p in checked.problems if p.severity is DAMAGE} == {
        ("DATA_DAMAGED", key),
        ("PARKED", key),
    }


async def test_a_checkpoint_that_is_ahead_of_all_slots_is_told_in_one_line(root: Root) -> None:
    """`make fuzz` found that every slot up to 2**63 was looked for."""
    await forge_checkpoint(root, lambda checkpoint: setattr(checkpoint.state, "slot", 2**63))
    missing = [problem for problem in (await check(root)).problems if problem.code == "MISSING_SEGMENT"]
    assert len(missing) == 1
    assert f"to {2**63} are missing" in missing[0].text


async def test_a_deletion_that_was_cut_off_is_no_damage(root: Root) -> None:
    """A file below the log start was deleted, and no checkpoint says so yet.

    A power cut after any step found it.
    """
    await forge_checkpoint(root, lambda checkpoint: setattr(checkpoint.partitions[0], "log_start", 7))
    await root.store.delete([(await parquet_keys(root.store))[0]])
    assert [p for p in (await check(root)).problems if p.severity is DAMAGE] == []
    await root.store.delete([(await parquet_keys(root.store))[0]])
    assert [p.code for p in (await check(root)).problems if p.severity is DAMAGE] == ["OBJECT_MISSING"]


async def test_what_retention_and_removal_leave_is_no_damage(root: Root) -> None:
    """The log start is above the oldest files; one topic is on its way out, one is gone and its
    name is free.
    """
    await forge_checkpoint(root, lambda checkpoint: setattr(checkpoint.partitions[0], "log_start", 7))
    await root.produce("planes", (0, [b"x"] * 3))
    await root.compact()
    await root.remove_topic("planes")
    assert [p for p in (await check(root)).problems if p.severity is DAMAGE] == []
    await root.compact()
    assert [p for p in (await check(root)).problems if p.severity is DAMAGE] == []


async def test_a_topic_that_is_long_gone_is_no_gap_though_the_catalog_is_unreadable(root: Root) -> None:
    """Which topics were removed and forgotten only `__metadata` knows."""
    await root.create_topic("gone", 1, 1)
    await root.produce("gone", (0, [b"x"] * 3))
    await root.compact()
    await root.remove_topic("gone")
    engine = LocalEngine(root.sources, run_inline)
    [topic] = (
        await remove_topics(Compaction(root.store, root.cluster, root.sources, engine), await root.catalog())
    ).free
    await root.put_internal(METADATA, topic_key(topic.name), None)
    await root.compact()
    await root.compact()
    assert (await check(root)).problems == []
    checkpoint = await root.newest(keys.METADATA_BUNDLE)
    damaged = await flip(root, keys.snapshot(keys.METADATA_BUNDLE, checkpoint.snapshot_plan), 40)
    assert {problem.object_key for problem in (await check(root)).problems} == {damaged}

"""Second copies of what bundle 0 holds: how they are put and deleted, by this release beside an older one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ledgermq.errors import StoreUnusable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.sweep import sweep
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import AlreadyExists, Buffer, StoreUncertain
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.root.copies import CopyingStore, copies_of
from ledgermq_ledger.root.mend import mend_copies
from tests.stores.faulty import FaultyStore
from tests.stores.one_put import OnePut
from tests.unit.ledger.copied_roots import FOLDERS, bare_bucket, copied_root, damage, flipped, last, topics
from tests.worlds.ledgers import ledger_of, take_over
from tests.worlds.roots import Root

bucket = pytest.fixture(bare_bucket)
root = pytest.fixture(copied_root)


async def test_a_loser_puts_no_copy(bucket: MemoryStore, sources: Sources) -> None:
    """Two put the same number, the first of them between the two puts of the other."""
    root = await Root.open(CopyingStore(bucket), sources)
    await root.create_topic("t")

    class Rivals(OnePut):
        async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
            await super().put_if_absent(key, buffers)
            if key == keys.checkpoint(0, 1) and copies_of(rival) is not None:
                with pytest.raises(AlreadyExists):
                    await rival.put_if_absent(key, [b"a rival's"])

    rival = CopyingStore(bucket)
    won = await advance_checkpoint(ledger_of(CopyingStore(Rivals(bucket)), 0, sources=sources))
    assert won is not None
    assert await bucket.get(keys.checkpoint(0, 1)) == await bucket.get(keys.checkpoint(0, 1) + keys.COPY)
    assert (await newest_checkpoint(rival, 0)).put_id == won.put_id


@pytest.mark.parametrize("fault", ["before", "after", "throttle"])
async def test_a_put_counts_only_once_its_copy_is_there(
    root: Root, bucket: MemoryStore, sources: Sources, fault: str
) -> None:
    """The put of the copy fails, with its effect or without: it is tried again before the caller
    learns that the put has won.
    """

    class FailsCopies(FaultyStore):
        async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
            if key.endswith(keys.COPY) and not self.calls["copies"]:
                self.calls["copies"] += 1
                self.script("put_if_absent", fault)  # type: ignore[arg-type]
            await super().put_if_absent(key, buffers)

    faulty = FailsCopies(bucket, sources)
    writer = await take_over(ledger_of(CopyingStore(faulty), 0, sources=sources), "b")
    claimed = keys.segment(0, writer.issued_slot)
    assert faulty.calls["copies"] == 1
    assert await bucket.get(claimed) == await bucket.get(claimed + keys.COPY)
    await writer.close()


async def test_a_copy_that_cannot_be_put_leaves_the_put_uncertain(root: Root, bucket: MemoryStore) -> None:
    class Full(OnePut):
        async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
            if key.endswith(keys.COPY):
                raise StoreUnusable("the disk is full")
            await super().put_if_absent(key, buffers)

    key = keys.segment(0, 99)
    with pytest.raises(StoreUncertain, match="second copy"):
        await CopyingStore(Full(bucket)).put_if_absent(key, [b"a segment"])
    assert await bucket.get(key) == b"a segment"


async def test_a_late_put_at_the_place_of_a_lost_object_has_lost(
    root: Root, bucket: MemoryStore, sources: Sources
) -> None:
    """A rival's put was under way when the original was taken away: it finds the number empty,
    and the copy taken.
    """
    for key in [await last(bucket, folder) for folder in FOLDERS.values()]:
        good = await bucket.get(key)
        await bucket.delete([key])
        outcome = await settle_put(CopyingStore(bucket), key, [b"begins ", sources.new_id()], sources=sources)
        assert outcome is PutOutcome.LOST
        assert await bucket.get(key) == good, "what was first is there again"


async def test_a_put_that_is_made_again_restores_a_damaged_copy(
    root: Root, bucket: MemoryStore, sources: Sources
) -> None:
    """Rivals put the same snapshot: the second finds it there, with a copy that was damaged
    meanwhile.
    """
    key = await last(bucket, keys.snapshots(0))
    good = await bucket.get(key)
    await bucket.put(key + keys.COPY, flipped(good, 5))
    assert await settle_put(CopyingStore(bucket), key, [good], sources=sources) is PutOutcome.WON
    assert await bucket.get(key + keys.COPY) == good


async def test_of_two_that_differ_the_copy_is_the_one_that_was_put_first(
    root: Root, bucket: MemoryStore, sources: Sources
) -> None:
    """The late rival was stopped before it could see that it had lost."""
    key = await last(bucket, keys.segments(0))
    good = await bucket.get(key)
    await bucket.delete([key])
    writer = await take_over(ledger_of(bucket, 0, sources=sources), "late")
    assert keys.segment(0, writer.issued_slot) == key
    await writer.close()
    assert await damage(root) == [key]
    await mend_copies(CopyingStore(bucket))
    assert await bucket.get(key) == good
    assert await topics(root, CopyingStore(bucket)) == {"early", "late", "latest"}


async def test_a_writer_that_was_cut_off_and_an_older_release_leave_no_copy_and_one_is_made(
    bucket: MemoryStore, sources: Sources
) -> None:
    root = await Root.open(bucket, sources)
    await root.create_topic("old")
    await root.compact()
    await root.create_topic("new")
    assert not [info.key async for info in bucket.list("") if info.key.endswith(keys.COPY)]
    assert await mend_copies(CopyingStore(bucket)) == []
    for folder in (keys.segments(0), keys.checkpoints(0), keys.snapshots(0)):
        key = await last(bucket, folder)
        assert await bucket.get(key + keys.COPY) == await bucket.get(key)


async def test_an_older_release_is_not_harmed(root: Root, bucket: MemoryStore) -> None:
    """It sees objects that have no number, and passes over them; it trims originals, and what is
    left over goes.
    """
    assert await topics(root, bucket) == {"early", "late", "latest"}
    plain = Root(bucket, root.sources, root.cluster)
    plain.topics, plain.produced = root.topics, root.produced
    await plain.create_topic("theirs")
    await plain.compact()
    assert await topics(root, bucket) == {"early", "late", "latest", "theirs"}
    assert await topics(root, CopyingStore(bucket)) == {"early", "late", "latest", "theirs"}
    assert await damage(root) == []
    trimmed = (await newest_checkpoint(bucket, 0)).trim_slot
    copies = {info.key async for info in bucket.list(keys.segments(0)) if info.key.endswith(keys.COPY)}
    orphans = {copy for copy in copies if keys.number(copy.removesuffix(keys.COPY)) < trimmed} - {
        f"{info.key}{keys.COPY}" async for info in bucket.list(keys.segments(0))
    }
    assert orphans
    mended = await mend_copies(CopyingStore(bucket))
    assert orphans == {each.object_key for each in mended}
    assert not any(each.damage for each in mended)
    again = Root(CopyingStore(bucket), root.sources, root.cluster)
    again.topics, again.produced = root.topics, root.produced
    await again.create_topic("ours")
    await again.compact()
    assert (await check_root(bucket, root.cluster)).worst in (None, Severity.NOTE)


async def test_an_original_is_deleted_with_its_copy_and_the_copy_first(root: Root, bucket: MemoryStore) -> None:
    deleted: list[str] = []

    class Watched(StoreWrapper):
        async def delete(self, keys: Sequence[str]) -> None:
            deleted.extend(keys)
            await super().delete(keys)

    watched = Root(CopyingStore(Watched(bucket)), root.sources, root.cluster)
    watched.topics, watched.produced = root.topics, root.produced
    await watched.compact()
    await watched.compact()
    of_bundle_0 = [key for key in deleted if key.startswith("ledgers/0000/")]
    originals = [key for key in of_bundle_0 if not key.endswith(keys.COPY)]
    assert {folder for folder in FOLDERS.values() for key in originals if key.startswith(folder)} == set(
        FOLDERS.values()
    )
    for key in originals:
        assert of_bundle_0.index(key + keys.COPY) < of_bundle_0.index(key)
    left = [info.key async for info in bucket.list("ledgers/0000/") if info.key.endswith(keys.COPY)]
    assert all([await bucket.head(copy.removesuffix(keys.COPY)) for copy in left])


async def test_garbage_collection_takes_copies_for_no_strangers(
    root: Root, bucket: MemoryStore, sources: Sources
) -> None:
    swept = await sweep(
        Compaction(root.store, root.cluster, sources, LocalEngine(sources, asyncio.to_thread)), grace_ms=0
    )
    assert swept.found.foreign == []
    assert await topics(root, root.store) == {"early", "late", "latest"}
    assert await damage(root) == []

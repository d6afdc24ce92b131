"""Second copies of what bundle 0 holds: who puts them, when they are read, and what makes two of
one again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

import pytest

from ledgermq.errors import DataDamaged, StoreUnusable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.sweep import sweep
from ledgermq_ledger.log.checkpoint import newest_checkpoint
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.plan_chain import put_plan
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.log.writer import claim
from ledgermq_ledger.object_store.contract import AlreadyExists, Buffer, ObjectInfo, ObjectMissing, StoreUncertain
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.object_store.wrapper import StoreWrapper
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.plan import make_plan
from ledgermq_ledger.root.copies import LOST, MENDED, READ_FROM_COPY, CopyingStore, copies_of, fault_of
from ledgermq_ledger.root.mend import mend_copies
from ledgermq_ledger.topics.catalog import read_catalog
from tests.stores.counting import CountingMeter
from tests.stores.faulty import FaultyStore
from tests.stores.one_put import OnePut
from tests.worlds.ledgers import ledger_of, take_over
from tests.worlds.roots import Root

FOLDERS = {
    "segment": keys.segments(0),
    "checkpoint": keys.checkpoints(0),
    "snapshot": keys.snapshots(0),
    "plan": keys.compactions(0),
}


class Meter(CountingMeter):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str]] = []

    def object_damaged(self, key: str, outcome: str) -> None:
        self.told.append((key, outcome))


@pytest.fixture
def bucket(sources: Sources) -> MemoryStore:
    """What lies there, seen without copies."""
    return MemoryStore("copies", sources)


@pytest.fixture
async def root(bucket: MemoryStore, sources: Sources) -> Root:
    """Checkpoint, snapshot, an open plan and a tail in bundle 0; topics in the snapshot and behind
    it.
    """
    root = await Root.open(CopyingStore(bucket), sources)
    await root.create_topic("early")
    await root.produce("early", (0, [b"0"]))
    await root.compact()
    await root.create_topic("late")
    history = await read_history(ledger_of(root.store, 0, cluster=root.cluster))
    plan = make_plan(history, await root.catalog(), everything=True, now_ms=sources.now_ms(), put_id=sources.new_id())
    assert plan is not None
    assert await put_plan(root.store, plan, sources)
    await root.create_topic("latest")
    return root


async def last(bucket: MemoryStore, folder: str) -> str:
    return [info.key async for info in bucket.list(folder) if keys.is_numbered(info.key, folder)][-1]


async def topics(root: Root, store: MemoryStore | CopyingStore) -> set[str]:
    return {
        topic.name
        for topic in (await read_catalog(ledger_of(store, 0, cluster=root.cluster))).living_topics()
        if not topic.internal
    }


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


async def damage(root: Root) -> list[str]:
    problems = (await check_root(root.store, root.cluster)).problems
    return [problem.object_key for problem in problems if problem.severity is Severity.DAMAGE]


async def test_all_of_bundle_0_and_nothing_else_is_stored_twice(root: Root, bucket: MemoryStore) -> None:
    stored = {info.key async for info in bucket.list("")}
    originals = {key for key in stored if key.startswith("ledgers/0000/") and not key.endswith(keys.COPY)}
    assert all(any(key.startswith(folder) for key in originals) for folder in FOLDERS.values())
    assert {key for key in stored if key.endswith(keys.COPY)} == {key + keys.COPY for key in originals}
    for key in originals:
        assert await bucket.get(key) == await bucket.get(key + keys.COPY)
        assert fault_of(key, await bucket.get(key)) is None
    assert await damage(root) == []
    assert {info.key async for info in root.store.list("")} == stored - {key + keys.COPY for key in originals}


@pytest.mark.parametrize("what", FOLDERS)
async def test_every_flipped_bit_of_an_original_is_seen_and_the_copy_read(
    root: Root, bucket: MemoryStore, what: str
) -> None:
    key = await last(bucket, FOLDERS[what])
    good = await bucket.get(key)
    meter = Meter()
    reader = CopyingStore(bucket, meter=meter, logs=False)
    for at in range(len(good)):
        await bucket.put(key, flipped(good, at))
        assert await reader.get(key) == good, at
        assert bytes(await reader.get_range(key, 5, 9)) == good[5:14]
        assert await reader.get_suffix(key, 11) == good[-11:]
    assert set(meter.told) == {(key, READ_FROM_COPY)}
    assert list(reader.damaged) == [key]
    await bucket.put(key, good)
    assert await reader.get(key) == good
    assert reader.damaged == {}


@pytest.mark.parametrize("what", FOLDERS)
@pytest.mark.parametrize("length", [0, 7, -1])
async def test_a_cut_original_is_mended_by_its_reader(root: Root, bucket: MemoryStore, what: str, length: int) -> None:
    key = await last(bucket, FOLDERS[what])
    good = await bucket.get(key)
    await bucket.put(key, good[:length])
    assert key in await damage(root)
    meter = Meter()
    assert await CopyingStore(bucket, mends=True, meter=meter).get(key) == good
    assert await bucket.get(key) == good
    assert meter.told == [(key, MENDED)]
    assert await damage(root) == []


@pytest.mark.parametrize("what", FOLDERS)
async def test_the_catalog_and_the_ledger_survive_an_original_that_is_gone(
    root: Root, bucket: MemoryStore, what: str
) -> None:
    before = await recover(ledger_of(root.store, 0))
    key = await last(bucket, FOLDERS[what])
    good = await bucket.get(key)
    await bucket.delete([key])
    assert await topics(root, root.store) == {"early", "late", "latest"}
    after = await recover(ledger_of(root.store, 0))
    assert (after.checkpoint, after.next_slot) == (before.checkpoint, before.next_slot)
    assert await damage(root) == [key]
    mended = await mend_copies(CopyingStore(bucket))
    assert [(each.object_key, each.damage) for each in mended] == [(key, True)]
    assert await bucket.get(key) == good
    assert await damage(root) == []


@pytest.mark.parametrize("what", FOLDERS)
async def test_a_damaged_copy_is_found_and_written_anew(root: Root, bucket: MemoryStore, what: str) -> None:
    key = await last(bucket, FOLDERS[what])
    good = await bucket.get(key)
    await bucket.put(key + keys.COPY, flipped(good, 3))
    assert await damage(root) == [key + keys.COPY]
    assert [each.object_key for each in await mend_copies(CopyingStore(bucket), dry_run=True)] == [key + keys.COPY]
    assert await damage(root) == [key + keys.COPY], "a dry run changes nothing"
    await mend_copies(CopyingStore(bucket))
    assert await bucket.get(key + keys.COPY) == good
    assert await mend_copies(CopyingStore(bucket)) == []


@pytest.mark.parametrize("what", ["segment", "checkpoint", "snapshot"])
async def test_two_that_are_damaged_refuse_and_are_named(root: Root, bucket: MemoryStore, what: str) -> None:
    key = await last(bucket, FOLDERS[what])
    good = await bucket.get(key)
    for each in (key, key + keys.COPY):
        await bucket.put(each, flipped(good, len(good) - 40))
    meter = Meter()
    store = CopyingStore(bucket, mends=True, meter=meter)
    with pytest.raises(DataDamaged) as refused:
        await topics(root, store)
    assert refused.value.object_key == key
    assert meter.told == [(key, LOST)]
    [lost] = [each for each in await mend_copies(store) if each.is_lost]
    assert lost.object_key == key
    assert {key, key + keys.COPY} <= set(await damage(root))
    assert await bucket.get(key) == flipped(good, len(good) - 40), "no process guesses"


async def test_a_missing_segment_with_a_damaged_copy_is_no_end_of_the_ledger(
    root: Root, bucket: MemoryStore, sources: Sources
) -> None:
    """Else the next owner would put its claim there, and what was acknowledged would be void."""
    key = await last(bucket, keys.segments(0))
    await bucket.put(key + keys.COPY, flipped(await bucket.get(key), 9))
    await bucket.delete([key])
    with pytest.raises(DataDamaged):
        await claim(ledger_of(root.store, 0, sources=sources), "next")


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


async def test_a_list_that_goes_on_behind_an_original_does_not_show_it_again(root: Root, bucket: MemoryStore) -> None:
    folder = keys.segments(0)
    shown = [info.key async for info in root.store.list(folder)]
    for at, key in enumerate(shown):
        assert [info.key async for info in root.store.list(folder, start_after=key)] == shown[at + 1 :]
    await bucket.delete([shown[1]])
    assert [info.key async for info in root.store.list(folder)] == shown


async def test_a_reader_without_the_right_to_write_reads_the_copy_all_the_same(root: Root, bucket: MemoryStore) -> None:
    class ReadOnly(StoreWrapper):
        async def put(self, key: str, data: Buffer) -> None:
            raise StoreUnusable("read-only")

        async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
            async for info in super().list(prefix, start_after):
                yield info

    key = await last(bucket, keys.checkpoints(0))
    good = await bucket.get(key)
    await bucket.put(key, good[1:])
    meter = Meter()
    store = CopyingStore(ReadOnly(bucket), mends=True, meter=meter)
    assert await store.get(key) == good
    assert await store.get(key) == good
    assert meter.told == [(key, READ_FROM_COPY)], "told once"


async def test_an_object_of_a_later_release_is_not_called_damaged(root: Root, bucket: MemoryStore) -> None:
    key = await last(bucket, keys.checkpoints(0))
    good = await bucket.get(key)
    later = good[:-12] + b"\x09\x00" + good[-10:]
    for each in (key, key + keys.COPY):
        await bucket.put(each, later)
    meter = Meter()
    store = CopyingStore(bucket, mends=True, meter=meter)
    assert await store.get(key) == later
    assert await mend_copies(store) == []
    assert meter.told == []


async def test_reading_a_missing_object_raises_object_missing(root: Root) -> None:
    for read in (
        root.store.get,
        root.store.head,
        partial(root.store.get_suffix, length=3),
        partial(root.store.get_range, start=0, length=3),
    ):
        with pytest.raises(ObjectMissing):
            await read(keys.segment(0, 10_000))

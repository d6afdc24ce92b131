"""Second copies of what bundle 0 holds: what a reader does when an original or its copy is damaged or gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

from ledgermq.errors import DataDamaged, StoreUnusable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.log.recovery import recover
from ledgermq_ledger.log.writing.writer import claim
from ledgermq_ledger.object_store.contract import Buffer, ObjectInfo, ObjectMissing
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.root.copies import LOST, MENDED, READ_FROM_COPY, CopyingStore, fault_of
from ledgermq_ledger.root.mend import mend_copies
from tests.unit.ledger.copied_roots import FOLDERS, Meter, bare_bucket, copied_root, damage, flipped, last, topics
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root

bucket = pytest.fixture(bare_bucket)
root = pytest.fixture(copied_root)


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

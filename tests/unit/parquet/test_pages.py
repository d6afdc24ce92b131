"""File lists stay complete while pages merge by powers and old files go."""

from __future__ import annotations

import pytest

from ledgermq.errors import DataDamaged
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.files.columns import FooterNote
from ledgermq_ledger.parquet.files.stored_file import StoredFile
from ledgermq_ledger.parquet.pages import PageReader, build_page, decode_page, encode_page, put_page
from tests.stores.backends import memory_store


def _stored(plan: int, first: int, last: int, failed: str = "") -> StoredFile:
    key = keys.ParquetName("t", 0, first, last, 7, plan).key
    return StoredFile(key, FooterNote("c", 1, 7, 0, first, last, plan, "00", failed), 100, last + 1 - first, 5, 6)


async def _commit(store: ObjectStore, sources: Sources, base: fmt.Checkpoint, *files: StoredFile) -> fmt.FilePage:
    """As a round does; `base` becomes the next checkpoint."""
    plan = fmt.CompactionPlan(bundle=1, number=base.finished_plan + 1, put_id=b"p" * 16, created_ms=9)
    page = await build_page(PageReader(store, 1), base, plan, files)
    if page.partitions:
        await put_page(store, page, sources)
        counters = base.partitions[0]
        counters.newest_page = plan.number
        counters.parquet_end = files[0].note.last_offset + 1
    base.finished_plan = plan.number
    return page


def _base() -> fmt.Checkpoint:
    return fmt.Checkpoint(bundle=1, partitions=[fmt.PartitionCheckpoint(topic_id=7)])


async def test_a_list_is_a_logarithmic_chain_of_pages(sources: Sources) -> None:
    async with memory_store() as store:
        base = _base()
        written = 0
        for i in range(100):
            page = await _commit(store, sources, base, _stored(i + 1, 10 * i, 10 * i + 9))
            written += len(page.partitions[0].files)
            assert len(await PageReader(store, 1).chain(base.partitions[0])) <= 7
        assert written < 100 * 8, "each file is written down a logarithmic number of times"
        pages = PageReader(store, 1)
        for offset in (0, 5, 9, 10, 555, 989, 999):
            files = await pages.files_from(base.partitions[0], offset)
            assert files[0].first_offset == offset // 10 * 10
            assert files[-1].last_offset == 999
            assert len(files) == 100 - offset // 10


async def test_deleted_files_are_left_out_and_their_pages_with_them(sources: Sources) -> None:
    async with memory_store() as store:
        base = _base()
        for i in range(20):
            await _commit(store, sources, base, _stored(i + 1, 10 * i, 10 * i + 9))
            base.partitions[0].parquet_start = max(0, 10 * i - 30)
        chain = await PageReader(store, 1).chain(base.partitions[0])
        for page in [n for n in range(1, 21) if n not in chain]:
            await store.delete([keys.file_page(1, page)])
        files = await PageReader(store, 1).files_from(base.partitions[0], 0)
        assert [file.first_offset for file in files] == [160, 170, 180, 190]
        await _commit(store, sources, base, _stored(21, 200, 209))
        assert [f.first_offset for f in await PageReader(store, 1).files_from(base.partitions[0], 0)] == [
            160,
            170,
            180,
            190,
            200,
        ]


async def test_a_partition_whose_files_are_all_gone_has_no_pages(sources: Sources) -> None:
    async with memory_store() as store:
        base = _base()
        await _commit(store, sources, base, _stored(1, 0, 9))
        base.partitions[0].parquet_start = 10
        await store.delete([keys.file_page(1, 1)])
        assert await PageReader(store, 1).files_from(base.partitions[0], 0) == []
        assert await PageReader(store, 1).chain(base.partitions[0]) == []
        page = await _commit(store, sources, base, _stored(2, 10, 19))
        assert (len(page.partitions[0].files), page.partitions[0].previous_page) == (1, 0)


async def test_failed_files_are_not_listed(sources: Sources) -> None:
    async with memory_store() as store:
        page = await _commit(store, sources, _base(), _stored(1, 0, 9, "damaged"))
        assert not page.partitions


async def test_a_gap_in_a_list_is_damage(sources: Sources) -> None:
    async with memory_store() as store:
        base = _base()
        await _commit(store, sources, base, _stored(1, 0, 9))
        await _commit(store, sources, base, _stored(2, 11, 19))
        with pytest.raises(DataDamaged, match=r"says that .* follows"):
            await PageReader(store, 1).files_from(base.partitions[0], 0)


async def test_a_rivals_page_is_as_good_and_another_plans_is_not(sources: Sources) -> None:
    async with memory_store() as store:
        page = await _commit(store, sources, _base(), _stored(1, 0, 9))
        page.partitions[0].files[0].committed_ms = 77
        await put_page(store, page, sources)
        page.put_id = b"q" * 16
        with pytest.raises(DataDamaged, match="another plan"):
            await put_page(store, page, sources)


@pytest.mark.parametrize("name", ["", "ledgers/0001/segments/x", keys.ParquetName("t", 1, 0, 9, 7, 1).key])
async def test_a_page_that_names_what_is_no_file_of_its_partition_is_damaged(name: str) -> None:
    """The object store would refuse some of these names, as the caller's error."""
    file = fmt.ParquetFile(key=name, first_offset=0, last_offset=9)
    part = fmt.PartitionFiles(topic_id=7, partition=0, files=[file])
    data = encode_page(fmt.FilePage(bundle=1, plan=1, put_id=b"p" * 16, partitions=[part]))
    with pytest.raises(DataDamaged, match="is no file of partition"):
        decode_page(data, keys.file_page(1, 1))

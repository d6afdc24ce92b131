"""Archives: a file is copied, the copy read back, and only then it goes; whatever breaks, no record
is nowhere.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from ledgermq.errors import DataDamaged, LedgerMQError, StoreUnusable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.sweep import tidy_bundle
from ledgermq_ledger.garbage.topics.expired_files import remove_expired as remove_expired_files
from ledgermq_ledger.garbage.topics.retention import apply as apply_retention
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.archiving.archive import archived_files
from ledgermq_ledger.parquet.compacting.round import run_round
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from tests.stores.backends import memory_store, seeded_sources
from tests.stores.dying import Crash, DyingStore
from tests.stores.one_put import OnePut
from tests.unit.parquet.test_gc import Clock
from tests.virtual_time import virtual
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, read_parquet_rows

FILES = 3
VALUES = {i: b"%d" % i for i in range(2 * FILES)}


async def filled(
    store: ObjectStore, clock: Clock, sources: Sources, deleted: int = 0, files: int = FILES, **settings: str
) -> Root:
    """Topic t with some files, all of them below the log start and old enough to go, and the first
    records deleted on demand.
    """
    root = await Root.open(store, sources)
    await root.create_topic("t", delete_action="archive", retention_ms="1000", **settings)
    for i in range(files):
        await root.produce("t", (0, [VALUES[2 * i], VALUES[2 * i + 1]]), timestamp_ms=clock.now_us // 1000)
        assert not (await root.compact()).failures
    clock.now_us += 10**9
    if deleted:
        move = deletion_move(root.topics["t"], {0: deleted})
        await advance_checkpoint(ledger_of(store, 1, cluster=root.cluster, sources=sources), move)
    await apply_retention(ledger_of(store, 1, cluster=root.cluster, sources=sources), await root.catalog())
    clock.now_us += 10**9
    return root


async def archived_rows(store: ObjectStore) -> dict[int, bytes]:
    """What a plain reader of the archive sees: it passes over names that begin with "_"."""
    found: dict[int, bytes] = {}
    async for info in store.list(keys.ARCHIVE):
        if info.key == keys.ARCHIVE_OWNER:
            continue
        rows = (
            pq.ParquetFile(io.BytesIO(await store.get(info.key))).read(columns=["topic", "offset", "value"]).to_pylist()
        )
        assert {row["topic"] for row in rows} == {"t"}
        assert not found.keys() & {row["offset"] for row in rows}
        found |= {row["offset"]: row["value"] for row in rows}
    return found


async def live_rows(store: ObjectStore) -> dict[int, bytes]:
    return (await read_parquet_rows(store)).get(("t", 0), {})


async def tidy(root: Root, store: ObjectStore, sources: Sources) -> None:
    await tidy_bundle(ledger_of(store, 1, cluster=root.cluster, sources=sources), await root.catalog())


async def test_files_that_retention_takes_are_in_the_archive_and_nowhere_else(sources: Sources) -> None:
    clock = Clock()
    sources = Sources(clock, sources.random)
    async with memory_store(sources) as store:
        root = await filled(store, clock, sources)
        await tidy(root, store, sources)
        counters = partition_of(await root.newest(), root.topics["t"].id, 0)
        assert (counters.log_start, counters.parquet_start) == (6, 6)
        assert await live_rows(store) == {}
        assert await archived_rows(store) == VALUES
        names = await archived_files(store, "t", root.topics["t"].id, 0)
        assert [(name.first_offset, name.last_offset) for name, _ in names] == [(0, 1), (2, 3), (4, 5)]
        assert await archived_files(store, "t", 98, 0) == [], "another topic of the same name"


async def test_another_store_may_be_the_archive(sources: Sources) -> None:
    clock = Clock()
    sources = Sources(clock, sources.random)
    other = MemoryStore("vault", sources)

    async def open_archive(url: str) -> ObjectStore:
        assert url == "memory://vault"
        return other

    async with memory_store(sources) as store:
        root = await filled(store, clock, sources, archive_url="memory://vault")
        await remove_expired_files(
            ledger_of(store, 1, cluster=root.cluster, sources=sources), await root.catalog(), open_archive
        )
        assert await live_rows(store) == {}
        assert (await archived_rows(other), await archived_rows(store)) == (VALUES, {})


class _LateSegments(StoreWrapper):
    """What is read of segments and plans comes late, so that everything else is over before."""

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        if prefix in (keys.segments(1), keys.compactions(1)):
            for _ in range(100):
                await asyncio.sleep(0)
        async for info in self.inner.list(prefix, start_after):
            yield info

    async def list_fences(self) -> Sequence[str]:
        for _ in range(100):
            await asyncio.sleep(0)
        return await self.inner.list_fences()


async def test_a_page_that_is_lost_keeps_retention_from_going_and_nothing_else(sources: Sources) -> None:
    clock = Clock()
    sources = Sources(clock, sources.random)
    async with memory_store(sources) as store:
        root = await filled(store, clock, sources)
        await root.produce("t", (0, [b"later"]))
        catalog, compaction = (
            await root.catalog(),
            Compaction(store, root.cluster, sources, LocalEngine(sources, run_inline)),
        )
        done = await run_round(compaction, 1, catalog, everything=True)
        assert done is not None
        trim_slot = (await root.newest()).trim_slot
        [newest_page] = {part.newest_page for part in (await root.newest()).partitions if part.newest_page}
        await store.delete([keys.file_page(1, newest_page)])
        with pytest.raises(LedgerMQError, match="files/"):
            await tidy(root, _LateSegments(store), sources)
        assert [
            keys.number(info.key) async for info in store.list(keys.segments(1)) if keys.number(info.key) < trim_slot
        ] == [1], "the claim"
        assert [info async for info in store.list(keys.compactions(1))] == []
        assert await store.list_fences() == []
        assert len([info async for info in store.list(keys.checkpoints(1))]) == 1


@pytest.mark.parametrize("after_effect", [False, True])
@virtual
async def test_a_process_may_die_at_every_operation(after_effect: bool) -> None:
    async def lives(dies_at: int) -> int:
        """How many operations a whole run takes; 0: it died."""
        clock = Clock()
        sources = Sources(clock, seeded_sources().random)
        async with memory_store(sources) as store:
            root = await filled(store, clock, sources, files=2)
            values = {offset: VALUES[offset] for offset in range(4)}
            dying = DyingStore(store, dies_at, after_effect)
            died = False
            try:
                await tidy(root, dying, sources)
            except Crash:
                died = True
            live, archived = await live_rows(store), await archived_rows(store)
            assert live | archived == values, f"a record is nowhere after operation {dies_at}"
            counters = partition_of(await root.newest(), root.topics["t"].id, 0)
            assert min(live, default=4) >= counters.parquet_start
            await tidy(root, store, sources)
            assert (await live_rows(store), await archived_rows(store)) == ({}, values)
            return 0 if died else dying.calls

    dies_at = 1
    while not await lives(dies_at):
        dies_at += 1
    assert dies_at > 30


class _BadArchive(StoreWrapper):
    """What is put below archive/ is not what is read there."""

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        data = bytes(await self.inner.get_range(key, start, length))
        return data[:-1] + b"?" if key.startswith(keys.ARCHIVE) else data


class _ShortArchive(StoreWrapper):
    async def head(self, key: str) -> ObjectInfo:
        info = await self.inner.head(key)
        return replace(info, size=info.size - 1) if key.startswith(keys.ARCHIVE) else info


class _FullArchive(OnePut):
    async def put_if_absent(self, key: str, buffers: object) -> None:
        if key.startswith(keys.ARCHIVE):
            raise StoreUnusable("the disk is full")
        await self.inner.put_if_absent(key, buffers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("broken", "error"), [(_BadArchive, DataDamaged), (_ShortArchive, DataDamaged), (_FullArchive, StoreUnusable)]
)
async def test_without_a_good_copy_nothing_goes(
    sources: Sources, broken: type[StoreWrapper], error: type[LedgerMQError]
) -> None:
    clock = Clock()
    sources = Sources(clock, sources.random)
    async with memory_store(sources) as store:
        root = await filled(store, clock, sources)
        with pytest.raises(error):
            await tidy(root, broken(store), sources)
        assert await live_rows(store) == VALUES


async def test_something_else_under_the_name_keeps_the_file(sources: Sources) -> None:
    clock = Clock()
    sources = Sources(clock, sources.random)
    async with memory_store(sources) as store:
        root = await filled(store, clock, sources)
        first = min([info.key async for info in store.list(keys.PARQUET)])
        await store.put_if_absent(keys.archived(first), [b"PAR1 something else PAR1"])
        with pytest.raises(DataDamaged, match="another object under this name"):
            await tidy(root, store, sources)
        assert await live_rows(store) == VALUES


async def test_one_topic_that_cannot_archive_holds_up_no_other(sources: Sources) -> None:
    clock = Clock()
    sources = Sources(clock, sources.random)
    async with memory_store(sources) as store:
        root = await filled(store, clock, sources)
        await root.create_topic("u", retention_bytes="0")
        await root.produce("u", (0, [b"x"]))
        full = _FullArchive(store)
        assert isinstance((await root.compact(full, sources)).failures[1], StoreUnusable)
        clock.now_us += 10**9
        assert ("u", 0) in await read_parquet_rows(store)
        with pytest.raises(StoreUnusable):
            await tidy(root, full, sources)
        rows = await read_parquet_rows(store)
        assert rows == {("t", 0): VALUES}


async def test_records_deleted_on_demand_are_not_archived(sources: Sources) -> None:
    """Rounded down to a file, as all that plain readers see."""
    clock = Clock()
    sources = Sources(clock, sources.random)
    async with memory_store(sources) as store:
        root = await filled(store, clock, sources, deleted=3)
        await tidy(root, store, sources)
        assert await live_rows(store) == {}
        assert sorted(await archived_rows(store)) == [2, 3, 4, 5]

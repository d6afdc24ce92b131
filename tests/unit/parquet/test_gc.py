"""Garbage collection deletes what nothing refers to, and nothing else, whatever others do between
its steps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import pytest

from ledgermq.errors import DataDamaged
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.sweep import Garbage, collect_garbage, find_garbage
from ledgermq_ledger.object_store.contract import Buffer, FencedPuts, ObjectInfo, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.files.columns import FooterNote, empty_file
from tests.stores.backends import memory_store, seeded_sources
from tests.stores.requests_made import Requests
from tests.unit.parquet.test_crashes import Crash
from tests.virtual_time import run_virtual
from tests.worlds.damage import damage_checkpoint
from tests.worlds.roots import Root, parquet_keys, read_everything, read_parquet_rows


class Clock:
    def __init__(self) -> None:
        self.now_us = 10**15

    def __call__(self) -> int:
        return self.now_us


def keys_of(garbage: Garbage) -> list[str]:
    """Everything found."""
    found = [*garbage.files.values(), *garbage.records.values()]
    return sorted(each.key for group in found for each in group)


async def _compacted(store: ObjectStore, sources: Sources, rounds: int) -> Root:
    root = await Root.open(store, sources)
    await root.create_topic("t", partitions=2)
    for i in range(rounds):
        await root.produce("t", (0, [b"a%d" % i]), (1, [b"b%d" % i]))
        assert not (await root.compact()).failures
    return root


async def test_pages_that_were_merged_are_garbage(sources: Sources) -> None:
    async with memory_store() as store:
        root = await _compacted(store, sources, 8)
        assert [keys.number(info.key) async for info in store.list(keys.file_pages(1))] == [8], (
            "8 = 2³ files are in one page"
        )
        await root.produce("t", (0, [b"x"]))
        await root.compact()
        assert [keys.number(info.key) async for info in store.list(keys.file_pages(1))] == [8, 9]


async def test_files_of_others_are_never_touched(sources: Sources) -> None:
    clock = Clock()
    async with memory_store(Sources(clock, sources.random)) as store:
        root = await _compacted(store, sources, 2)
        cluster = root.cluster.cluster_id
        of_another_cluster = FooterNote("x", 1, 99, 0, 0, 0, 1, "00", failed="f")
        of_an_open_plan = FooterNote(cluster, 1, 99, 0, 0, 0, 3, "00", failed="f")
        of_no_plan = FooterNote(cluster, 1, 99, 0, 0, 0, 1, "00", failed="f")
        files = {
            "parquet/notes.txt": b"hello",
            keys.ParquetName("t", 0, 0, 0, 98, 1).key: b"not Parquet",
            keys.ParquetName("t", 0, 0, 0, 99, 2).key: bytes(
                empty_file(of_no_plan)
            ),  # says plan 1, is named for plan 2
            keys.ParquetName("u", 0, 0, 0, 99, 1).key: bytes(empty_file(of_another_cluster)),
            keys.ParquetName("v", 0, 0, 0, 99, 3).key: bytes(empty_file(of_an_open_plan)),
        }
        garbage = keys.ParquetName("w", 0, 0, 0, 99, 1).key
        before = await parquet_keys(store)
        for key, data in {**files, garbage: bytes(empty_file(of_no_plan))}.items():
            await store.put_if_absent(key, [data])
        assert list(keys_of(await find_garbage(store, root.cluster))) == [garbage]
        assert (await collect_garbage(store, root.cluster)).keys == [], "too young"
        clock.now_us += 21_000_000
        assert (await collect_garbage(store, root.cluster)).keys == [garbage]
        assert await parquet_keys(store) == sorted([*before, *files])


@pytest.mark.parametrize("lost", ["checkpoint", "page", "plan"])
async def test_a_bundle_that_cannot_be_told_keeps_all_and_the_others_are_collected(sources: Sources, lost: str) -> None:
    """What might be live there is live: its files, whatever their own footers say, and its records."""
    clock = Clock()
    async with memory_store(Sources(clock, sources.random)) as store:
        root = await Root.open(store, sources, bundles=3)
        for bundle, name in ((1, "a"), (2, "b")):
            await root.create_topic(name, bundle=bundle)
            await root.produce(name, (0, [b"1"]))
        assert not (await root.compact()).failures
        garbage = {}
        for bundle, name in ((1, "a"), (2, "b")):
            topic = root.topics[name]
            note = FooterNote(root.cluster.cluster_id, bundle, topic.id, 0, 7, 7, 1, "00", failed="f")
            garbage[bundle] = keys.ParquetName(name, 0, 7, 7, topic.id, 1).key
            await store.put_if_absent(garbage[bundle], [bytes(empty_file(note))])
            await store.put_if_absent(keys.snapshot(bundle, 1), [b"of no plan"])
        if lost == "checkpoint":
            damaged = await damage_checkpoint(store, 2)
        elif lost == "page":
            damaged = keys.file_page(2, (await root.newest(2)).partitions[0].newest_page)
            await store.delete([damaged])
        else:
            damaged = keys.compaction(2, (await root.newest(2)).finished_plan + 1)
            await store.put_if_absent(damaged, [b"garbage"])
        clock.now_us += 100_000_000
        before = [info.key async for info in store.list("")]
        asked = Requests(store)
        collected = await collect_garbage(asked, root.cluster)
        footers = sum(
            count
            for (operation, folder), count in asked.made.items()
            if operation.startswith("get") and folder == "parquet"
        )
        assert footers == 1, "of the one file that is judged: a damaged bundle has many that are live"
        assert {bundle: error.object_key for bundle, error in collected.failures.items()} == {2: damaged}
        assert isinstance(collected.failures[2], DataDamaged)
        gone = {garbage[1], keys.snapshot(1, 1)}
        assert (set(collected.keys), len(collected.keys)) == (gone, 2)
        assert [info.key async for info in store.list("")] == [key for key in before if key not in gone]


class _Interrupted(StoreWrapper):
    """Runs `meanwhile` just before call `at` of any operation."""

    def __init__(self, inner: ObjectStore, at: int, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self.calls = 0
        self._at = at
        self._meanwhile = meanwhile

    async def _call(self) -> None:
        self.calls += 1
        if self.calls == self._at:
            await self._meanwhile()

    async def get(self, key: str) -> bytes:
        await self._call()
        return await self.inner.get(key)

    async def get_suffix(self, key: str, length: int) -> bytes:
        await self._call()
        return await self.inner.get_suffix(key, length)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._call()
        async for info in self.inner.list(prefix, start_after):
            yield info
        await self._call()

    async def delete(self, keys: Sequence[str]) -> None:
        await self._call()
        await self.inner.delete(keys)

    async def store_time_ms(self) -> int:
        await self._call()
        return await self.inner.store_time_ms()


class _DiesAfterFiles(StoreWrapper):
    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        return _OnePut(await self.inner.fenced_puts(fence, keys, url_life_ms))


class _OnePut(FencedPuts):
    def __init__(self, inner: FencedPuts) -> None:
        self._inner = inner

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self._inner.put_if_absent(key, buffers)
        raise Crash


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True])
def test_a_collector_deletes_nothing_live_while_others_run_rounds(begun: bool) -> None:
    """Another process runs rounds, or finishes one that was begun, between any two calls of a
    collector that then finds all old enough.
    """

    async def run(at: int) -> bool:
        clock = Clock()
        sources = Sources(clock, seeded_sources(at).random)
        root = await _compacted(MemoryStore("test", sources), sources, 3)
        await root.produce("t", (0, [b"x"]), (1, [b"y"]))
        if begun:
            with pytest.raises(Crash):
                await root.compact(_DiesAfterFiles(root.store))
            assert len(await parquet_keys(root.store)) > 6, "files of a plan that is not finished"

        async def meanwhile() -> None:
            assert not (await root.compact()).failures
            await root.produce("t", (0, [b"z"]))
            assert not (await root.compact()).failures
            clock.now_us += 100_000_000

        store = _Interrupted(root.store, at, meanwhile)
        assert not (await collect_garbage(store, root.cluster)).failures
        assert await read_everything(root) == root.produced
        await read_parquet_rows(root.store)
        assert not (await root.compact()).failures
        rows = await read_parquet_rows(root.store)
        assert {part: list(found.values()) for part, found in rows.items()} == root.produced
        return store.calls >= at

    at = 1
    while run_virtual(partial(run, at)):
        at += 1
    assert at > 20

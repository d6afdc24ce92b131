"""Compaction and deletion where the store has no room: no begun plan stays behind, and what is
deleted makes room.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from ledgermq.errors import StoreFull
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.topics.removed import remove as remove_topics
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_bundle
from tests.stores.backends import file_store, memory_store, seeded_sources
from tests.stores.full import FullStore
from tests.stores.one_put import OnePut
from tests.worlds.roots import NoTasks, Root, parquet_keys, read_everything, read_parquet_rows


@pytest.fixture(params=["memory", "file"])
async def root(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Root]:
    opened: AbstractAsyncContextManager[ObjectStore] = (
        memory_store() if request.param == "memory" else file_store(tmp_path)
    )
    async with opened as store:
        root = await Root.open(store, seeded_sources())
        await root.create_topic("gone", partitions=2)
        await root.create_topic("kept")
        for i in range(3):
            await root.produce("gone", (0, [b"a%d" % i * 100]), (1, [b"b%d" % i * 100]))
        await root.produce("kept", (0, [b"k"]))
        yield root


async def plans(root: Root) -> list[str]:
    return [info.key async for info in root.store.list(keys.compactions(1))]


async def segments(root: Root) -> int:
    return len([info.key async for info in root.store.list(keys.segments(1))])


async def removal(root: Root, store: ObjectStore) -> list[str]:
    engine = LocalEngine(root.sources, run_inline)
    done = await remove_topics(Compaction(store, root.cluster, root.sources, engine), await root.catalog())
    assert not done.failures, done.failures
    return [topic.name for topic in done.free]


async def background_round(root: Root, store: ObjectStore, *, everything: bool = False) -> None:
    compaction = Compaction(store, root.cluster, root.sources, LocalEngine(root.sources, run_inline))
    await compact_bundle(compaction, 1, await root.catalog(), everything=everything)


async def test_a_compaction_without_room_leaves_no_begun_plan_behind(root: Root) -> None:
    report = await root.compact(FullStore(root.store))
    assert isinstance(report.failures[1], StoreFull)
    newest = await root.newest()
    assert [keys.number(key) for key in await plans(root) if keys.number(key) > newest.finished_plan] == []
    assert await parquet_keys(root.store) == []
    assert not await root.store.list_fences()
    assert await read_everything(root) == root.produced
    assert (await root.compact()).failures == {}  # with room again nothing is missing
    assert await read_everything(root) == root.produced
    await read_parquet_rows(root.store)


async def test_what_there_was_room_for_is_kept_and_makes_room(root: Root) -> None:
    await root.produce("gone", (0, [b"c" * 100]))
    before = await segments(root)
    report = await root.compact(FullStore(root.store, files=2))
    assert isinstance(report.failures[1], StoreFull)
    assert len(await parquet_keys(root.store)) == 2
    assert await read_everything(root) == root.produced
    assert (await root.compact(FullStore(root.store, files=1))).failures == {}  # one was left
    assert await segments(root) < before
    assert await read_everything(root) == root.produced


async def test_trying_again_and_again_puts_nothing_that_stays(root: Root) -> None:
    """Else each try eats up some of the room that is left."""
    full, left = FullStore(root.store), []
    for _ in range(4):
        with pytest.raises(StoreFull):
            await background_round(root, full, everything=True)
        left.append(sorted([info.key async for info in root.store.list("ledgers/") if "/checkpoints/" not in info.key]))
    assert len(await plans(root)) == 1  # it names the slots that wait for Parquet
    assert left == [left[0]] * 4
    assert await read_everything(root) == root.produced
    assert (await root.compact()).failures == {}
    assert await plans(root) == []


async def test_a_try_puts_one_plan(root: Root) -> None:
    """A round is repeated only where the one before has moved something: the first does, past the
    claim.
    """
    finished = []
    for _ in range(3):
        with pytest.raises(StoreFull):
            await background_round(root, FullStore(root.store), everything=True)
        finished.append((await root.newest()).finished_plan)
    assert finished == [2, 3, 4]


class _Ordered(OnePut):
    """Notes what was made durable, and what was put after that."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.durable: list[str] = []
        self.by_checkpoint: list[list[str]] = []

    async def make_durable(self, keys: Sequence[str]) -> None:
        await self.inner.make_durable(keys)
        self.durable += keys

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if "/checkpoints/" in key:
            self.by_checkpoint.append(sorted(self.durable))
        await self.inner.put_if_absent(key, buffers)


@pytest.mark.parametrize("files", [2, 10])
async def test_files_are_durable_before_a_checkpoint_names_them(root: Root, files: int) -> None:
    """Also where their fence is closed: tests/powercut shows what that is for."""
    ordered = _Ordered(FullStore(root.store, files=files))
    await root.compact(ordered)
    there = sorted(await parquet_keys(root.store))
    assert len(there) == min(files, 3)
    assert there in ordered.by_checkpoint


@pytest.mark.parametrize("begun", [False, True])
async def test_deleting_a_topic_needs_no_parquet_and_its_segments_go(root: Root, begun: bool) -> None:
    """Although a compaction was begun before, which has planned files of the topic."""
    if begun:
        await root.compact(NoTasks(root.store))
        assert len(await plans(root)) == 1
    before = await segments(root)
    await root.remove_topic("gone")
    assert await removal(root, FullStore(root.store)) == ["gone"]
    assert await parquet_keys(root.store) == []
    await background_round(root, FullStore(root.store, files=1))  # for the one record of the other topic
    assert [key for key in await parquet_keys(root.store) if "topic=gone" in key] == []
    assert await segments(root) <= before - 3
    kept = {("kept", 0): root.produced["kept", 0]}
    assert {part: values for part, values in (await read_everything(root)).items() if part[0] == "kept"} == kept


async def test_files_of_a_removed_topic_that_were_never_put_hold_no_segment(root: Root) -> None:
    """The plan was begun before the topic was removed, and there is no room for a single file: its
    own segments go all the same.
    """
    await root.compact(NoTasks(root.store))
    before = await segments(root)
    await root.remove_topic("gone")
    assert await removal(root, FullStore(root.store)) == ["gone"]
    await background_round(root, FullStore(root.store))
    assert await segments(root) == before - 3
    assert await read_parquet_rows(root.store) == {}


async def test_segments_that_hold_more_of_others_wait_for_their_compaction(root: Root) -> None:
    await root.produce("kept", (0, [b"x" * 5000]))
    await root.remove_topic("gone")
    assert await removal(root, root.store) == ["gone"]
    await background_round(root, FullStore(root.store))  # not a file is written for so little
    assert await parquet_keys(root.store) == []

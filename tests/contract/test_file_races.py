"""Processes that race in one folder of the file store: puts, removals of folders, fences."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import AlreadyExists, FenceClosed, StoreUncertain
from ledgermq_ledger.object_store.file.store import FileStore
from tests.contract.file_stores import file_store, files_below, keys_of

store = pytest.fixture(file_store)


@pytest.mark.slow
async def test_a_put_races_with_the_removal_of_its_folder(tmp_path: Path, store: FileStore) -> None:
    """Another program tidies empty folders away: a put lands whole, or says that it is not sure,
    and then a second try lands.
    """
    stop = threading.Event()

    def tidy() -> None:
        while not stop.is_set():
            shutil.rmtree(tmp_path / "root" / "a", ignore_errors=True)

    thread = threading.Thread(target=tidy)
    thread.start()
    try:
        for i in range(100):
            try:
                await store.put_if_absent(f"a/b/c/{i}", [b"x"])
            except StoreUncertain:
                pass
    finally:
        stop.set()
        thread.join()
    try:
        await store.put_if_absent("a/b/c/last", [b"x"])
    except StoreUncertain:  # the folder was removed after the last put of the race
        await store.put_if_absent("a/b/c/last", [b"x"])
    assert await store.get("a/b/c/last") == b"x"


async def test_folders_of_topics_go_with_their_last_object_and_others_stay(tmp_path: Path, store: FileStore) -> None:
    gone = [
        "parquet/topic=gone/partition=0/a",
        "parquet/topic=gone/partition=1/b",
        "keyed/_7/partition=0/files/c",
        "sinks/q/staged/d",
    ]
    kept = ["parquet/topic=kept/partition=0/e", "ledgers/0001/compactions/f"]
    for key in (*gone, *kept):
        await store.put_if_absent(key, [b"x"])
    await store.open_fence("fence")
    strange = tmp_path / "root" / "parquet" / "topic=gone" / "partition=1" / "_SUCCESS"
    strange.write_bytes(b"of another program")
    await store.delete([*gone, "ledgers/0001/compactions/f", "parquet/topic=never/partition=0/was"])

    def folders() -> set[str]:
        return {str(path.relative_to(tmp_path / "root")) for path in (tmp_path / "root").rglob("*") if path.is_dir()}

    left = {"parquet/topic=gone", "parquet/topic=gone/partition=1"}
    around = {
        ".tmp",
        "parquet",
        "parquet/_tmp",
        "parquet/_tmp/fence",
        "keyed",
        "sinks",
        "ledgers",
        "ledgers/0001",
        "ledgers/0001/compactions",
    }
    assert folders() == {"parquet/topic=kept", "parquet/topic=kept/partition=0", *left, *around}
    strange.unlink()
    await store.delete(["parquet/topic=gone/partition=1/b"])
    assert folders().isdisjoint(left), "the next deletion there takes them"


async def test_no_put_fails_because_its_folder_goes(tmp_path: Path, sources: Sources) -> None:
    """Each store believes to know the folder, which goes with each object that the other deletes in
    it.
    """

    async def put_and_delete(store: FileStore, name: str) -> None:
        for i in range(100):
            key = f"parquet/topic=t/partition=0/{name}-{i}"
            await store.put_if_absent(key, [b"x"])
            assert await store.get(key) == b"x"
            await store.delete([key])

    async with FileStore(tmp_path / "root") as one, FileStore(tmp_path / "root") as other, asyncio.TaskGroup() as group:
        for name, store in (("a", one), ("b", one), ("c", other), ("d", other)):
            group.create_task(put_and_delete(store, name))
    assert [path.name for path in (tmp_path / "root" / "parquet").iterdir()] == []


async def test_fenced_puts_race_with_the_close_of_their_fence(store: FileStore) -> None:
    """Each put either landed before the fence was closed, and is seen right after, or is refused;
    none lands later.
    """
    for i in range(15):
        fence, names = f"fence-{i}", [f"f{i}/{j}" for j in range(8)]
        await store.open_fence(fence)
        puts = await store.fenced_puts(fence, names, 60_000)
        tasks = [asyncio.create_task(puts.put_if_absent(name, [b"x" * 1000])) for name in names]
        await asyncio.sleep(0.0005 * (i % 5))
        await store.close_fence(fence)
        landed = [info.key async for info in store.list(f"f{i}/")]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [info.key async for info in store.list(f"f{i}/")] == landed
        for name, result in zip(names, results, strict=True):
            assert (result is None) == (name in landed), result
            assert result is None or isinstance(result, (FenceClosed, StoreUncertain))


async def test_a_fence_that_is_made_again_does_not_revive_what_was_on_its_way(tmp_path: Path, store: FileStore) -> None:
    await store.open_fence("f")
    puts = await store.fenced_puts("f", ["a/b"], 60_000)
    (tmp_path / "root/parquet/_tmp/f/half").write_bytes(b"left by a killed task")
    await store.close_fence("f")
    await store.close_fence("f")
    with pytest.raises(FenceClosed):
        await puts.put_if_absent("a/b", [b"x"])
    assert await keys_of(store) == []


async def test_two_stores_of_one_folder_agree_on_who_created_it(tmp_path: Path, store: FileStore) -> None:
    async with FileStore(tmp_path / "root") as other:
        await other.put_if_absent("a/b", [b"theirs"])
        with pytest.raises(AlreadyExists):
            await store.put_if_absent("a/b", [b"ours"])
        assert files_below(tmp_path / "root") == ["a/b"]

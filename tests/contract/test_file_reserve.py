"""The reserve of a file store: a full disk refuses records first, and everything small goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ledgermq.errors import StoreFull
from ledgermq_ledger.object_store.file.reserve import HEADER_BYTES, NAME, Reserve
from ledgermq_ledger.object_store.file.store import FileStore
from tests.servers.small_disk import small_disk

MIB = 1024 * 1024
RESERVE = 1 * MIB


class SmallDisk:
    """A disk of so many bytes, below the file store: it counts what is written under `root`, the
    reserve included.
    """

    def __init__(self, root: Path, size: int) -> None:
        self.root = root
        self.size = size

    @property
    def free(self) -> int:
        used = sum(os.stat(path).st_size for path in self.root.rglob("*") if path.is_file())
        return self.size - used

    def install(self, patch: pytest.MonkeyPatch) -> None:
        writev, fallocate, statvfs = os.writev, os.posix_fallocate, os.statvfs

        def check(size: int) -> None:
            if size > self.free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def watched_writev(descriptor: int, buffers: list[memoryview]) -> int:
            check(sum(memoryview(buffer).nbytes for buffer in buffers))
            return writev(descriptor, buffers)

        def watched_fallocate(descriptor: int, offset: int, length: int) -> None:
            check(length - os.fstat(descriptor).st_size)
            fallocate(descriptor, offset, length)

        def watched_statvfs(path: str) -> os.statvfs_result:
            real = statvfs(path)
            blocks = (self.size // 4096, self.free // 4096, self.free // 4096)
            return os.statvfs_result((4096, 4096, *blocks, *tuple(real)[5:]))

        patch.setattr(os, "writev", watched_writev)
        patch.setattr(os, "posix_fallocate", watched_fallocate)
        patch.setattr(os, "statvfs", watched_statvfs)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> SmallDisk:
    disk = SmallDisk(root, 16 * MIB)
    disk.install(monkeypatch)
    return disk


@pytest.fixture
async def store(root: Path, disk: SmallDisk) -> AsyncIterator[FileStore]:
    async with FileStore(root) as store:
        assert await store.keep_reserve(RESERVE)
        yield store


async def fill(store: FileStore, size: int = 256 * 1024) -> list[str]:
    """With records, until no more go in."""
    keys: list[str] = []
    while True:
        try:
            await store.put_data(f"data/{len(keys)}", [bytes(size)])
        except StoreFull:
            return keys
        keys.append(f"data/{len(keys)}")


async def test_records_never_use_the_reserve_and_everything_else_does(
    store: FileStore, root: Path, disk: SmallDisk
) -> None:
    filled = await fill(store)
    assert (root / NAME).stat().st_size == RESERVE
    (root / "other-program").write_bytes(bytes(disk.free))
    await store.put_if_absent("claim", [b"x" * 1000])
    await store.put("heartbeat", b"x" * 1000)
    await store.open_fence("f")
    assert (root / NAME).stat().st_size == HEADER_BYTES
    for size in (1, 100_000):
        with pytest.raises(StoreFull, match="reserve"):
            await store.put_data("data/more", [bytes(size)])
    assert not await store.keep_reserve(RESERVE)
    await store.delete(filled[:6])
    (root / "other-program").unlink()
    with pytest.raises(StoreFull):  # first the reserve is to be filled again
        await store.put_data("data/more", [b"x"])
    assert await store.keep_reserve(RESERVE)
    assert (root / NAME).stat().st_size == RESERVE
    await store.put_data("data/more", [b"x"])


async def test_parquet_files_may_use_half_of_it(store: FileStore, root: Path, disk: SmallDisk) -> None:
    await store.open_fence("f")
    names = [f"parquet/{i}" for i in range(6)]
    puts = await store.fenced_puts("f", names, 1000)
    await fill(store)
    (root / "other-program").write_bytes(bytes(disk.free))
    with pytest.raises(StoreFull):
        await puts.put_if_absent(names[0], [bytes(RESERVE // 2 + 4096)])
    for name in names[:2]:
        await puts.put_if_absent(name, [bytes(RESERVE // 5)])
    with pytest.raises(StoreFull):
        await puts.put_if_absent(names[2], [bytes(RESERVE // 5)])
    assert disk.free >= RESERVE // 2
    await store.put_if_absent("checkpoint", [bytes(RESERVE // 3)])


async def test_several_processes_share_it_and_a_stranger_sees_nothing(store: FileStore, root: Path) -> None:
    async with FileStore(root) as other:
        assert await other.keep_reserve(RESERVE)
        assert [info.key async for info in other.list("")] == []
        await fill(other)
        await asyncio.gather(
            *(each.put_if_absent(f"claim/{i}", [bytes(300_000)]) for i, each in enumerate((store, other)))
        )
        with pytest.raises(StoreFull, match="reserve"):
            await store.put_data("data/more", [b"x"])


@pytest.mark.parametrize("is_half", [False, True])
def test_two_that_meet_a_full_disk_together_both_get_room(root: Path, disk: SmallDisk, is_half: bool) -> None:
    """One gives the reserve back; the other finds that done, and has room all the same."""
    root.mkdir()
    reserve = Reserve(root)
    assert reserve.keep(RESERVE)
    (root / "other-program").write_bytes(bytes(disk.free))
    both_failed = threading.Barrier(2, timeout=60)

    def write(name: str) -> int:
        tries = 0

        def step() -> int:
            nonlocal tries
            tries += 1
            if disk.free < 1000:
                both_failed.wait()
                raise OSError(errno.ENOSPC, "full")
            return (root / name).write_bytes(bytes(1000))

        written = reserve.spend_half(step, 1000) if is_half else reserve.spend(step)
        assert tries == 2
        return written

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(write, ("one", "other"))) == [1000, 1000]


async def test_records_that_were_on_their_way_when_the_reserve_was_given_back_do_not_take_it(
    store: FileStore, root: Path, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.writev

    def slow(descriptor: int, buffers: list[memoryview]) -> int:
        (root / NAME).write_bytes((root / NAME).read_bytes()[:HEADER_BYTES])  # as another process does
        return whole(descriptor, buffers)

    free = disk.free
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", slow)
        with pytest.raises(StoreFull, match="reserve"):
            await store.put_data("data/late", [bytes(100_000)])
    assert not (root / "data").exists()
    assert disk.free == free + RESERVE - HEADER_BYTES, "the room is free again"


async def test_what_is_kept_is_a_sixteenth_of_a_small_disk_at_most_and_nothing_where_it_is_off(
    root: Path, disk: SmallDisk
) -> None:
    async with FileStore(root) as store:
        await store.put_if_absent("a", [b"x"])
        assert not (root / NAME).exists()
        assert await store.keep_reserve(64 * MIB)
        assert (root / NAME).stat().st_size == MIB
        assert await store.keep_reserve(0)
        assert not (root / NAME).exists()
        await fill(store)
        assert await store.keep_reserve(64 * MIB)  # too late for this one: there is no room for a new one
        assert not (root / NAME).exists()


@pytest.mark.parametrize("text", [b"", b"rubbish", b"\xff" * 10_000])
async def test_a_strange_file_in_place_of_the_reserve_does_no_harm(root: Path, disk: SmallDisk, text: bytes) -> None:
    async with FileStore(root) as store:
        await store.put_if_absent("a", [b"x"])
        (root / NAME).write_bytes(text)
        assert await store.keep_reserve(RESERVE)
        await store.put_data("b", [b"x"])


@pytest.fixture
def real_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 16) as folder:
        yield folder


async def test_on_a_real_file_system(real_disk: Path, until_full: Callable[[Path], None]) -> None:
    async with FileStore(real_disk / "root") as store:
        assert await store.keep_reserve(RESERVE)
        await fill(store)
        until_full(real_disk / "filler")
        await store.put_if_absent("claim", [b"x" * 1000])
        await store.put("heartbeat", b"x" * 1000)
        with pytest.raises(StoreFull, match="reserve"):
            await store.put_data("data/more", [b"x"])
        (real_disk / "filler").unlink()
        await store.delete(["data/1", "data/2", "data/3", "data/4", "data/5", "data/6", "data/7", "data/8"])
        assert await store.keep_reserve(RESERVE)
        await store.put_data("data/more", [b"x"])


@pytest.fixture
def until_full() -> Callable[[Path], None]:
    def fill_up(path: Path) -> None:
        with path.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                return

    return fill_up

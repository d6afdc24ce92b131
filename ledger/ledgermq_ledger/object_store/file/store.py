"""`FileStore`: store objects as files below one folder, on a local disk or a file system that
several machines share.

    <root>/<key>                       the object, whole; never changed, except by `put` (a new file renamed over it)
    <root>/.tmp/<32 hex digits>        a put in flight; one older than an hour is abandoned, and opening the
                                       store removes it
    <root>/.reserve                    room for a full disk, see `file_reserve`
    <root>/parquet/_tmp/<fence>/<hex>  a fenced put on its way: once its folder is gone, linking from it fails

Below `parquet/`, `keyed/`, `sinks/` and `hidden/` a folder goes with the last object that is deleted in it;
elsewhere folders stay. Invariants: those of `file_disk`; a fenced put makes its temporary file
inside the fence's folder and never makes that folder. The clock is the file system's own: the time
that it gives a file touched now. Blocking calls run in threads of this store, reads and writes
apart, so that neither starves the other. The root must have hard links. Must not know what the
objects mean.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from ledgermq.errors import LedgerMQError, StoreUnusable
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import (
    FENCES,
    PASSING,
    Buffer,
    FenceClosed,
    FencedPuts,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    OpenedPuts,
    StoreUncertain,
)
from ledgermq_ledger.object_store.file.disk import Disk, read, read_range, remove, store_errors, write_temp
from ledgermq_ledger.object_store.file.reserve import Reserve
from ledgermq_ledger.object_store.folder_walk import info_of, walk
from ledgermq_ledger.object_store.names import TEMPORARY, check_fence, check_key, check_prefix, is_shown

READERS_MAX = 8
WRITERS_MAX = 8
TEMPORARY_AGE_MS_MAX = 3_600_000
TEMPORARY_REMOVALS_MAX = 1_000
CLOSE_FENCE_ATTEMPTS_MAX = 20
LIST_BATCH_MIN, LIST_BATCH_MAX = 16, 1024

T = TypeVar("T")


class FileStore(ObjectStore):
    """`root` is made, with its parents, by the first write.

    `sources` provides the names of temporary files.
    """

    def __init__(self, root: Path, sources: Sources | None = None) -> None:
        self._root = root.absolute()
        self.url = self._root.as_uri()
        self._sources = sources or Sources()
        self._disk = Disk(self._root, [self._root / folder for folder in PASSING])
        self._reserve = Reserve(self._root)
        self._temporary = self._root / TEMPORARY
        self._fences = self._root / FENCES
        self._clock = self._temporary / f"clock-{self._sources.new_id().hex()}"
        self._prepared = asyncio.Lock()
        self._is_prepared = False
        self._readers = ThreadPoolExecutor(READERS_MAX, "file-store-read")
        self._writers = ThreadPoolExecutor(WRITERS_MAX, "file-store-write")

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        path = self._path(key)
        await self._write(key, lambda: self._create(key, self._new_temp(), path, buffers))

    async def put_data(self, key: str, buffers: Sequence[Buffer]) -> None:
        path = self._path(key)

        def create() -> None:
            self._reserve.check_untouched()
            self._create(key, self._new_temp(), path, buffers, before_link=self._reserve.check_untouched)

        await self._write(key, create, spend=_spend_nothing)

    async def make_durable(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        if paths:
            await self._run(self._writers, keys[0], lambda: self._disk.make_durable(paths))

    async def keep_reserve(self, size_bytes: int) -> bool:
        return await self._write("reserve", lambda: self._reserve.keep(size_bytes), spend=_spend_nothing)

    async def put(self, key: str, data: Buffer) -> None:
        path = self._path(key)
        await self._write(key, lambda: self._replace(key, self._new_temp(), path, data))

    async def get(self, key: str) -> bytes:
        path = self._path_to_read(key)
        return await self._run(self._readers, key, lambda: read(path, self._root))

    async def get_range(self, key: str, start: int, length: int) -> memoryview:
        assert start >= 0
        assert length >= 0
        path = self._path_to_read(key)
        return await self._run(self._readers, key, lambda: read_range(path, self._root, start, length))

    async def get_suffix(self, key: str, length: int) -> bytes:
        assert length >= 0
        path = self._path_to_read(key)
        return await self._run(self._readers, key, lambda: read(path, self._root, length))

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        walked = (info for info in walk(self._root, check_prefix(prefix), start_after) if is_shown(info.key))
        size = LIST_BATCH_MIN
        while batch := await self._run(self._readers, prefix, partial(_list_batch, walked, size)):
            for info in batch:
                yield info
            if len(batch) < size:
                return
            size = min(2 * size, LIST_BATCH_MAX)

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        if paths:
            await self._run(self._writers, keys[0], lambda: self._reserve.spend(lambda: self._disk.remove_all(paths)))

    async def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        return await self._run(self._readers, key, lambda: _head(key, path))

    async def store_time_ms(self) -> int:
        return await self._write("clock", self._touch)

    async def open_fence(self, fence: str) -> None:
        folder = self._fences / check_fence(fence)
        await self._write(fence, lambda: self._disk.make_fence(folder))

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        folder = self._fences / check_fence(fence)
        if not await self._run(self._readers, fence, folder.is_dir):
            raise FenceClosed(f"fence {fence} is not open")
        return OpenedPuts(fence, {key: self._path(key) for key in keys}, partial(self._put_fenced, folder))

    async def close_fence(self, fence: str) -> None:
        folder = self._fences / check_fence(fence)
        for attempt in range(CLOSE_FENCE_ATTEMPTS_MAX):
            if await self._run(self._writers, fence, lambda: self._disk.remove_fence(folder)):
                return
            await asyncio.sleep(0.01 * attempt)  # a put keeps making files in it, or NFS holds an open file
        raise StoreUncertain(f"fence {fence} keeps receiving files while it is closed; retry")

    async def list_fences(self) -> Sequence[str]:
        return await self._run(self._readers, FENCES, lambda: _folders(self._fences))

    async def share(self, key: str, life_ms: int) -> str:
        return self._path(key).as_uri()

    async def close(self) -> None:
        try:
            if self._is_prepared:
                with suppress(LedgerMQError):
                    await self._run(self._writers, "clock", partial(remove, self._clock))
        finally:
            for pool in (self._readers, self._writers):
                await asyncio.to_thread(pool.shutdown, True, cancel_futures=True)

    async def _put_fenced(self, folder: Path, key: str, path: Path, buffers: Sequence[Buffer]) -> None:
        size_bytes = sum(memoryview(buffer).nbytes for buffer in buffers)
        spend = partial(self._reserve.spend_half, size_bytes=size_bytes)
        await self._write(
            key, lambda: _create_fenced(self._disk, key, self._new_temp(folder), path, buffers), spend=spend
        )

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _new_temp(self, folder: Path | None = None) -> Path:
        """Return a new name for each try: the file of an earlier one may still exist."""
        return (folder or self._temporary) / self._sources.new_id().hex()

    def _path_to_read(self, key: str) -> str:
        """Return the path as text: building a Path takes as long as a part of the read."""
        return f"{self._root}/{check_key(key)}"

    async def _write(self, what: str, step: Callable[[], T], spend: Callable[[Callable[[], T]], T] | None = None) -> T:
        """Run a step. `spend`: runs it with as much of the reserve as it may use; by default with
        all of it.
        """
        if not self._is_prepared:
            async with self._prepared:
                if not self._is_prepared:
                    await self._run(self._writers, str(self._root), lambda: self._reserve.spend(self._prepare))
                    self._is_prepared = True
        return await self._run(self._writers, what, lambda: (spend or self._reserve.spend)(step))

    async def _run(self, pool: ThreadPoolExecutor, what: str, step: Callable[[], T]) -> T:
        def guarded() -> T:
            self._disk.check_usable()
            with store_errors(what):
                return step()

        return await asyncio.get_running_loop().run_in_executor(pool, guarded)

    def _prepare(self) -> None:
        try:
            self._disk.prepare(self._temporary)
        except NotADirectoryError as e:
            raise StoreUnusable(f"{self._root} is not a folder; the root has to be one") from e
        oldest_ms = self._touch() - TEMPORARY_AGE_MS_MAX
        with os.scandir(self._temporary) as entries:
            for entry in islice(entries, TEMPORARY_REMOVALS_MAX):
                with suppress(FileNotFoundError):
                    if entry.stat().st_mtime_ns // 1_000_000 < oldest_ms:
                        remove(Path(entry.path))

    def _touch(self) -> int:
        with _in_temporary(self._root):
            self._clock.touch()
        return self._clock.stat().st_mtime_ns // 1_000_000

    def _create(
        self, key: str, temp: Path, path: Path, buffers: Sequence[Buffer], before_link: Callable[[], None] | None = None
    ) -> None:
        with _in_temporary(self._root):
            write_temp(temp, buffers, before_link)
        with _in_target(key):
            self._disk.create(temp, path)

    def _replace(self, key: str, temp: Path, path: Path, data: Buffer) -> None:
        with _in_temporary(self._root):
            write_temp(temp, [data])
        with _in_target(key):
            self._disk.replace(temp, path)


def _spend_nothing(step: Callable[[], T]) -> T:
    return step()


@contextmanager
def _in_temporary(root: Path) -> Iterator[None]:
    """Explain a missing folder of temporary files: it existed once, so the disk is gone, and no new
    store may begin in its place.
    """
    try:
        yield
    except FileNotFoundError as e:
        raise StoreUnusable(f"{root} no longer exists: mount it again, or restart for an empty cluster") from e


@contextmanager
def _in_target(key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as e:
        raise StoreUncertain(f"a folder or temporary file of {key} was removed", object_key=key) from e
    except (NotADirectoryError, IsADirectoryError) as e:
        raise StoreUnusable(
            f"{key}: a file is in the place of a folder, or a folder in the place of a file", object_key=key
        ) from e


def _create_fenced(disk: Disk, key: str, temp: Path, path: Path, buffers: Sequence[Buffer]) -> None:
    try:
        write_temp(temp, buffers)
        with _in_target(key):
            disk.create(temp, path)
    except (FileNotFoundError, StoreUncertain) as e:
        if temp.parent.is_dir():
            raise StoreUncertain(f"a folder or temporary file of {key} was removed", object_key=key) from e
        raise FenceClosed(f"fence {temp.parent.name} is closed", object_key=key) from e


def _list_batch(walked: Iterator[ObjectInfo], size: int) -> list[ObjectInfo]:
    return list(islice(walked, size))


def _head(key: str, path: Path) -> ObjectInfo:
    found = os.stat(path)
    if path.is_dir():
        raise ObjectMissing(f"no object {key}", object_key=key)
    return info_of(key, found)


def _folders(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except FileNotFoundError:
        return []

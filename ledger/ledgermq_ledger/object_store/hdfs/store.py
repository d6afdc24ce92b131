"""`HdfsStore`: store objects as files below one folder of an HDFS, through its native protocol
(hdfs-native; no Java in this process).

    <root>/<key>                       the object, whole; never changed, except by `put` (a new file renamed over it)
    <root>/.tmp/<32 hex digits>        a put in flight; one older than an hour is abandoned, and the first
                                       write removes it
    <root>/parquet/_tmp/<fence>/<hex>  a fenced put on its way: once its folder is gone, the NameNode refuses its rename

A put writes a temporary file, has the DataNodes sync it to disk, closes it and renames it without
overwrite: the NameNode lets one of all racers win, and has the rename in its own journal before it
answers. A fence is closed by one recursive delete, which the NameNode does as one step. The clock
is the NameNode's. Every call ends within `TIMEOUT_S`; one that runs out may still have its effect.

Calls run in threads of this store, reads and writes apart. The client's own asyncio half is not
used: its wake-ups take the interpreter's lock in another order than its polls do, and the process
blocked forever (hdfs-native 0.14.7). Must not know what the objects mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from posixpath import dirname
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from hdfs_native import Client, FileStatus, WriteOptions

from ledgermq.errors import InvalidConfig, LedgerMQError, StoreUnusable
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import (
    FENCES,
    Buffer,
    FenceClosed,
    FencedPuts,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    OpenedPuts,
    StoreUncertain,
)
from ledgermq_ledger.object_store.folder_walk import ascending
from ledgermq_ledger.object_store.hdfs.errors import hdfs_errors
from ledgermq_ledger.object_store.names import TEMPORARY, check_fence, check_key, check_prefix, is_shown

TIMEOUT_S = 60.0
READERS_MAX = 16
WRITERS_MAX = 16
"""Threads that write: a close waits for the DataNodes' report, so several puts have to be in
flight.
"""
LIST_BATCH = 1_000
TEMPORARY_AGE_MS_MAX = 3_600_000
TEMPORARY_REMOVALS_MAX = 1_000
KNOWN_FOLDERS_MAX = 100_000

T = TypeVar("T")


def open_hdfs(url: str, sources: Sources) -> HdfsStore:
    """Open an HDFS store; it sends nothing yet. URLs: hdfs://host:port/folder, or
    hdfs://nameservice/folder with the site files in HADOOP_CONF_DIR.

    Raises InvalidConfig.
    """
    parts = urlsplit(url)
    if not parts.netloc or not parts.path.startswith("/"):
        raise InvalidConfig(
            f"root URL {url!r}: an HDFS URL names a NameNode or a name service, and a folder: hdfs://host:8020/folder"
        )
    if parts.query or parts.fragment:
        raise InvalidConfig(f"root URL {url!r}: an HDFS URL has neither '?' nor '#'")
    try:
        client = Client(f"hdfs://{parts.netloc}")
    except Exception as error:  # any fault that it finds in the site files
        if ":" not in parts.netloc:
            text = (
                f"{parts.netloc!r} is neither host:port nor a name service of hdfs-site.xml in HADOOP_CONF_DIR: {error}"
            )
            raise InvalidConfig(f"root URL {url!r}: {text}") from error
        raise InvalidConfig(f"root URL {url!r}: {error}") from error
    return HdfsStore(url, client, unquote(parts.path).rstrip("/"), sources)


class HdfsStore(ObjectStore):
    """`root`: absolute path without a slash at its end; made, with its parents, by the first write."""

    def __init__(self, url: str, client: Client, root: str, sources: Sources) -> None:
        self.url = url
        self._client = client
        self._root = root
        self._sources = sources
        self._temporary = f"{root}/{TEMPORARY}"
        self._folders: set[str] = set()
        self._prepared = asyncio.Lock()
        self._is_prepared = False
        self._readers = ThreadPoolExecutor(READERS_MAX, "hdfs-read")
        self._writers = ThreadPoolExecutor(WRITERS_MAX, "hdfs-write")

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        path = self._path(key)
        try:
            await self._write(key, partial(self._create, self._new_temp(), path, buffers))
        except ObjectMissing as error:
            raise StoreUncertain(
                f"{key}: {error.message}: its folder or its temporary file is missing", object_key=key
            ) from error

    async def put(self, key: str, data: Buffer) -> None:
        path = self._path(key)
        await self._write(key, partial(self._replace, self._new_temp(), path, data))

    async def get(self, key: str) -> bytes:
        return await self._read(key, 0, None)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        assert start >= 0
        assert length >= 0
        return await self._read(key, start, length)

    async def get_suffix(self, key: str, length: int) -> bytes:
        assert length >= 0
        return await self._read(key, -length, None) if length else await self._read(key, 0, 0)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        found = ascending(self._children, check_prefix(prefix), start_after)
        while batch := await self._run(self._readers, prefix, lambda: list(islice(found, LIST_BATCH))):
            for key, status in batch:
                yield _info(key, status)

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        if paths:
            await self._run(self._writers, keys[0], partial(self._delete, paths))

    async def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        return await self._run(self._readers, key, lambda: _info(key, self._client.get_file_info(path)))

    async def store_time_ms(self) -> int:
        return await self._write("clock", self._now_ms)

    async def open_fence(self, fence: str) -> None:
        folder = self._fence(fence)
        await self._write(fence, lambda: self._client.mkdirs(folder, 0o755, True))

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        folder = self._fence(fence)
        if not await self._is_there(folder):
            raise FenceClosed(f"fence {fence} is not open")
        return OpenedPuts(fence, {key: self._path(key) for key in keys}, partial(self._put_fenced, folder))

    async def close_fence(self, fence: str) -> None:
        folder = self._fence(fence)
        await self._run(self._writers, fence, lambda: self._client.delete(folder, True))

    async def list_fences(self) -> Sequence[str]:
        entries = await self._run(self._readers, FENCES, lambda: list(self._entries(FENCES)))
        return sorted(name for name, is_folder, _ in entries if is_folder)

    async def share(self, key: str, life_ms: int) -> None:
        """Return None: consumers have no HDFS client."""

    async def close(self) -> None:
        """Close the store, without waiting for cancelled calls: their threads end by themselves,
        within the client's own time-outs.
        """
        for pool in (self._readers, self._writers):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _put_fenced(self, folder: str, key: str, path: str, buffers: Sequence[Buffer]) -> None:
        """The folder is never made here: that it is there is what admits the put."""
        try:
            await self._write(key, partial(self._create, f"{folder}/{self._sources.new_id().hex()}", path, buffers))
        except (ObjectMissing, StoreUncertain):
            if not await self._is_there(folder):
                raise FenceClosed(f"{key}: its fence was closed", object_key=key) from None
            raise

    async def _write(self, what: str, step: Callable[[], T]) -> T:
        if not self._is_prepared:
            async with self._prepared:
                if not self._is_prepared:
                    await self._run(self._writers, self.url, self._prepare)
                    self._is_prepared = True
        return await self._run(self._writers, what, step)

    async def _run(self, pool: ThreadPoolExecutor, what: str, step: Callable[[], T]) -> T:
        def guarded() -> T:
            with hdfs_errors(what):
                return step()

        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await asyncio.get_running_loop().run_in_executor(pool, guarded)
        except TimeoutError as error:
            raise StoreUncertain(f"{what}: HDFS did not answer within {TIMEOUT_S:g} s", object_key=what) from error

    async def _is_there(self, path: str) -> bool:
        try:
            await self._run(self._readers, path, lambda: self._client.get_file_info(path))
        except ObjectMissing:
            return False
        return True

    async def _read(self, key: str, start: int, length: int | None) -> bytes:
        path = self._path(key)
        return await self._run(self._readers, key, lambda: self._read_now(path, start, length))

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def _fence(self, fence: str) -> str:
        return f"{self._root}/{FENCES}{check_fence(fence)}"

    def _new_temp(self) -> str:
        return f"{self._temporary}/{self._sources.new_id().hex()}"

    # In threads

    def _prepare(self) -> None:
        self._client.mkdirs(self._temporary, 0o755, True)
        with suppress(LedgerMQError), hdfs_errors(self._temporary):
            oldest_ms = self._now_ms() - TEMPORARY_AGE_MS_MAX
            for name, _, status in islice(self._entries(TEMPORARY + "/"), TEMPORARY_REMOVALS_MAX):
                if status.modification_time < oldest_ms:
                    self._client.delete(f"{self._temporary}/{name}", True)

    def _now_ms(self) -> int:
        folder = self._new_temp()
        self._client.mkdirs(folder, 0o755, False)
        found = self._client.get_file_info(folder)
        self._client.delete(folder, True)
        return found.modification_time

    def _create(self, temp: str, path: str, buffers: Sequence[Buffer]) -> None:
        self._write_temp(temp, buffers)
        try:
            self._make_folder(dirname(path))
            self._rename(temp, path)
        except FileExistsError:
            self._client.delete(temp, False)
            raise

    def _replace(self, temp: str, path: str, data: Buffer) -> None:
        self._write_temp(temp, [data])
        self._make_folder(dirname(path))
        self._client.rename(temp, path, True)

    def _write_temp(self, temp: str, buffers: Sequence[Buffer]) -> None:
        try:
            writer = self._client.create(temp, WriteOptions(overwrite=False, create_parent=False))
        except FileNotFoundError:
            if dirname(temp) == self._temporary:
                raise StoreUnusable(f"{self._root} no longer exists: restart for an empty cluster") from None
            raise
        filled = [memoryview(buffer).cast("B") for buffer in buffers if memoryview(buffer).nbytes]
        for view in filled:
            writer.write(view)
        if filled:
            writer.hsync()
        writer.close()

    def _rename(self, temp: str, path: str) -> None:
        """Rename without overwrite. A folder that is cached may have been removed since."""
        try:
            self._client.rename(temp, path, False)
        except FileNotFoundError:
            self._folders.discard(dirname(path))
            self._make_folder(dirname(path))
            self._client.rename(temp, path, False)

    def _make_folder(self, folder: str) -> None:
        if folder in self._folders:
            return
        self._client.mkdirs(folder, 0o755, True)
        if len(self._folders) >= KNOWN_FOLDERS_MAX:
            self._folders.clear()
        self._folders.add(folder)

    def _delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._client.delete(path, False)

    def _read_now(self, path: str, start: int, length: int | None) -> bytes:
        """Read a range; `start` below 0: from the end.

        It never reads beyond the end, where the client would panic.
        """
        reader = self._client.read(path)
        size = len(reader)
        first = max(0, size + start) if start < 0 else min(start, size)
        wanted = size - first if length is None else min(length, size - first)
        return reader.read_range(first, wanted) if wanted else b""

    def _children(self, folder: str) -> Iterator[tuple[str, bool, FileStatus]]:
        for entry in self._entries(folder):
            if is_shown(folder + entry[0] + ("/" if entry[1] else "")):
                yield entry

    def _entries(self, folder: str) -> Iterator[tuple[str, bool, FileStatus]]:
        """Yield the entries of a folder relative to the root."""
        path = f"{self._root}/{folder}".rstrip("/") or "/"
        try:
            for status in self._client.list_status(path, False):
                if status.path != path:  # a file lists itself
                    yield status.path.rpartition("/")[2], status.isdir, status
        except FileNotFoundError:
            return


def _info(key: str, status: FileStatus) -> ObjectInfo:
    if status.isdir:
        raise ObjectMissing(f"{key} is a folder", object_key=key)
    return ObjectInfo(key, status.length, f"{status.modification_time:x}-{status.length:x}", status.modification_time)

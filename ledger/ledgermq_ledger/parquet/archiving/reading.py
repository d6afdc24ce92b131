"""Read the records that retention moved to an archive, by offset, also while files are on their way
there.

A file below the log start is in the archive, still among the live files, or for a while in both. So
a reader looks in the archive first, then below `parquet/`, then in the archive again. Records that
were deleted on demand are not shown, though a file may still hold them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa

from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import ParquetName
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.archiving.archive import archived_files
from ledgermq_ledger.parquet.reader import ParquetCache
from ledgermq_ledger.topics.topic import Topic

OpenStore = Callable[[str], Awaitable[ObjectStore]]
"""Opens the archive at a URL; empty: in the cluster's own root."""
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """`url`: that of the archive. `bytes`: the file's size. Picklable."""

    name: ParquetName
    url: str
    bytes: int

    @property
    def first(self) -> int:
        return self.name.first_offset

    @property
    def end(self) -> int:
        return self.name.last_offset + 1


class ArchiveReader:
    """Reads all archives of one cluster; calls may run side by side. `store`: the cluster's own."""

    def __init__(
        self, store: ObjectStore, open_store: OpenStore, run_blocking: RunBlocking = asyncio.to_thread
    ) -> None:
        self._store = store
        self._open = open_store
        self._run_blocking = run_blocking
        self._caches: dict[str, ParquetCache] = {}

    async def files_before(
        self, topic: Topic, part: fmt.PartitionCheckpoint, live: Sequence[fmt.ParquetFile]
    ) -> list[ArchivedFile]:
        """Return the files kept of a partition below its log start, ascending. There are gaps where
        the topic did not archive at that time.

        `live`: the files that the newest checkpoint lists. Raises the store's errors.
        """
        archive = await self._open(topic.settings.archive_url)
        names = dict(await archived_files(archive, topic.name, topic.id, part.partition))
        if topic.settings.delete_action == "archive":
            for file in live:
                name = keys.parse_parquet(file.key)
                if name is not None and name.last_offset < part.log_start and name.last_offset >= part.deleted_to:
                    names.setdefault(name, file.size)
        found: list[ArchivedFile] = []
        for name, size in sorted(names.items(), key=lambda each: each[0].first_offset):
            if name.last_offset < part.log_start and (not found or name.first_offset >= found[-1].end):
                found.append(ArchivedFile(name, topic.settings.archive_url, size))
        return found

    async def rows(self, file: ArchivedFile, offset: int) -> tuple[int, pa.Table]:
        """Return the row group that holds `offset`: its first offset, and its rows in the record
        schema.

        Raises ObjectMissing, DataDamaged, …
        """
        group = await self._wherever(file, lambda cache, key: cache.row_group(key, file.first, offset))
        return group.first_offset, group.rows

    async def offset_at(self, files: Sequence[ArchivedFile], timestamp_us: int) -> int | None:
        """Return the offset of the first record of this time or later; raises what `rows` raises.

        An archive has no index of times: it reads the footer of each file, and only the time column
        of row groups that may hold the record.
        """
        for file in files:
            found = await self._wherever(file, partial(_first_at, file, timestamp_us))
            if found is not None:
                return found
        return None

    async def _wherever(self, file: ArchivedFile, read: Callable[[ParquetCache, str], Awaitable[Found]]) -> Found:
        archived = keys.archived(file.name.key)
        for url, key in ((file.url, archived), (None, file.name.key)):
            try:
                return await read(await self._cache(url), key)
            except ObjectMissing:
                continue
        return await read(await self._cache(file.url), archived)  # it has just moved

    async def _cache(self, url: str | None) -> ParquetCache:
        """Return the cache of an archive; None: of the cluster's own store."""
        store = self._store if url is None else await self._open(url)
        return self._caches.setdefault(url or "", ParquetCache(store, self._run_blocking))


def _first_at(file: ArchivedFile, timestamp_us: int, cache: ParquetCache, key: str) -> Awaitable[int | None]:
    placed = fmt.ParquetFile(key=key, first_offset=file.first, last_offset=file.name.last_offset)
    return cache.first_at(placed, file.first, timestamp_us)

"""Reads what retention has taken of a partition and an archive keeps, by offset; also while files are still on their way there.

A file below the log start is in the archive, or still among the live ones, or for a while in both: whoever reads it looks in the archive
first, then below `parquet/`, then in the archive again. What was deleted on demand is not shown, though a file may still hold it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ledger import keys
from ledger.blocking import RunBlocking
from ledger.catalog import Topic
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.keys import ParquetName
from ledger.object_store.contract import ObjectMissing, ObjectStore
from ledger.parquet.archive import archived_files
from ledger.parquet.reader import ParquetCache

OpenStore = Callable[[str], Awaitable[ObjectStore]]
"""The archive at a URL; empty: in the cluster's own root."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """`url`: of the archive. `bytes`: its size. Picklable."""

    name: ParquetName
    url: str
    bytes: int

    @property
    def first(self) -> int:
        return self.name.first_offset

    @property
    def end(self) -> int:
        return self.name.last_offset + 1


async def archived_before(
    archive: ObjectStore, topic: Topic, part: fmt.PartitionCheckpoint, live: Sequence[fmt.ParquetFile]
) -> list[ArchivedFile]:
    """What is kept of a partition below its log start, ascending; there may be gaps, where a topic did not archive at that time.

    `live`: the files that the newest checkpoint lists. Raises the store's errors.
    """
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


class ArchiveReader:
    """`store`: the cluster's own."""

    def __init__(self, store: ObjectStore, open_store: OpenStore, run_blocking: RunBlocking = asyncio.to_thread) -> None:
        self._store = store
        self._open = open_store
        self._run_blocking = run_blocking
        self._caches: dict[str, ParquetCache] = {}

    async def rows(self, file: ArchivedFile, offset: int) -> tuple[int, pa.Table]:
        """The row group that holds `offset`: its first offset, and its rows in the record schema. Raises ObjectMissing, DataDamaged, …"""
        name = file.name
        for place, key in (("archive", keys.archived(name.key)), ("live", name.key)):
            try:
                group = await (await self._cache(file.url if place == "archive" else None)).row_group(key, name.first_offset, offset)
                return group.first_offset, group.rows
            except ObjectMissing:
                continue
        group = await (await self._cache(file.url)).row_group(keys.archived(name.key), name.first_offset, offset)  # it has just moved
        return group.first_offset, group.rows

    async def offset_at(self, files: Sequence[ArchivedFile], timestamp_us: int) -> int | None:
        """The first record of this time or a later one. Looks through the files: an archive has no index of times."""
        for file in files:
            offset = file.first
            while offset < file.end:
                first, rows = await self.rows(file, offset)
                late = pc.index(pc.greater_equal(rows["timestamp"].cast(pa.int64()), timestamp_us), True).as_py()
                if late >= 0:
                    return int(first + late)
                offset = first + rows.num_rows
        return None

    async def _cache(self, url: str | None) -> ParquetCache:
        """None: of the cluster's own store."""
        store = self._store if url is None else await self._open(url)
        return self._caches.setdefault(url or "", ParquetCache(store, self._run_blocking))

"""Archive the Parquet files that retention removes, for topics with `delete.action=archive`.

A copy is put under the file's own name below `archive/`, in the cluster's root or in another store,
and read back. Only then may the original be deleted. So each record is in one of both places, or
for a while in both, and never in none.

An archive is plain Parquet, is not listed anywhere else, and LedgerMQ never deletes anything in it.
The names of its files say what it holds. These names are the same in every cluster, so each cluster
has its own archive (`archive_owner`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Self

from ledgermq.errors import DataDamaged, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.keys import ParquetName
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.parquet.archiving.owner import check_owner, mark
from ledgermq_ledger.parquet.files.footer_checksum import check_whole
from ledgermq_ledger.root.open import open_store

PIECE_BYTES = 8 * 1024 * 1024

OpenArchive = Callable[[str], Awaitable[ObjectStore]]


class Archives:
    """The archives of one root. Stores are opened when the first file goes there, and closed at the
    end.
    """

    def __init__(self, store: ObjectStore, sources: Sources, open_archive: OpenArchive | None = None) -> None:
        self._store = store
        self._sources = sources
        self._open: OpenArchive = open_archive or partial(open_store, sources=sources)
        self._opened: dict[str, ObjectStore] = {"": store}
        self._cluster_id = ""
        self._marked: dict[str, bool] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def store(self, url: str) -> ObjectStore:
        """Open the archive at a URL; empty: the cluster's own store.

        Raises InvalidConfig, also if the archive belongs to another cluster, Unauthorized, the
        store's errors.
        """
        if url not in self._opened:
            self._opened[url] = await self._stack.enter_async_context(await self._open(url))
        if url not in self._marked:
            self._cluster_id = self._cluster_id or (await read_cluster(self._store)).cluster_id
            self._marked[url] = await check_owner(self._opened[url], self._cluster_id)
        return self._opened[url]

    async def keep(self, key: str, url: str) -> None:
        """Archive a file. On return a copy has been read back, or the file was deleted meanwhile by
        the same rules. The file is held in memory once.

        Raises DataDamaged (the file, or the object in its place in the archive), Unavailable, and
        what `store` raises.
        """
        try:
            data = await self._store.get(key)
        except ObjectMissing:
            return
        check_whole(data, key)
        archive, copy = await self.store(url), keys.archived(key)
        if not self._marked[url]:
            await mark(archive, self._cluster_id, self._sources)
            self._marked[url] = True
        if await settle_put(archive, copy, [data], sources=self._sources) is PutOutcome.UNKNOWN:
            raise Unavailable(f"{copy}: outcome of the put into the archive is unknown; retry later")
        if not await holds(archive, copy, data):
            raise DataDamaged(f"{copy}: the archive holds another object under this name than {key}", object_key=copy)


async def holds(store: ObjectStore, key: str, data: bytes) -> bool:
    """Return True if the object holds exactly these bytes; they are read back piece by piece."""
    if (await store.head(key)).size != len(data):
        return False
    for start in range(0, len(data), PIECE_BYTES):
        piece = memoryview(data)[start : start + PIECE_BYTES]
        if memoryview(await store.get_range(key, start, len(piece))) != piece:
            return False
    return True


async def archived_files(
    archive: ObjectStore, topic: str, topic_id: int, partition: int
) -> list[tuple[ParquetName, int]]:
    """Return the files of a partition in an archive, by offset, with sizes in bytes."""
    prefix = keys.archived(keys.parquet_partition(topic, partition))
    found = [
        (name, info.size) async for info in archive.list(prefix) if (name := keys.parse_archived(info.key)) is not None
    ]
    return sorted((each for each in found if each[0].topic_id == topic_id), key=lambda each: each[0].first_offset)

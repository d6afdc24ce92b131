"""Read records back from versions, for fetches below the begin of a partition's log.

Offsets have gaps there: each batch holds a run of consecutive offsets, and the first may begin
above the requested offset. A version is found by one LIST and cached. If one of its files is
missing, or it ends too low, there is a newer version.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from ledgermq.errors import DataDamaged
from ledgermq.protocol.batches.records import SCHEMA, Compression, encode_batch
from ledgermq.runtime.reread import Rereads
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.keyed.version import KeyedFile, KeyedVersion, newest_version
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.stored_batch import StoredBatch
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.files.columns import SCHEMA as PARQUET_SCHEMA
from ledgermq_ledger.parquet.files.key_search import KeyMatches, key_bytes, may_hold_key, rows_with_key
from ledgermq_ledger.parquet.files.row_group import read_columns
from ledgermq_ledger.parquet.files.stored_file import read_footer

T = TypeVar("T")

ATTEMPTS_MAX = 5
VERSIONS_MAX = 1024
FOOTERS_MAX = 256
DECODED_BYTES_MAX = 64 * 1024 * 1024
BATCHES_MAX = 1000
"""Batches of one read: a sparse version makes many small ones."""
BATCH_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows in the record schema, with their offsets, ascending."""

    offsets: list[int]
    rows: pa.Table

    def slice(self, first: int, end: int) -> KeyedRows:
        return KeyedRows(self.offsets[first:end], self.rows.slice(first, end - first))

    def runs(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield (offset of the first row, rows) of each run of consecutive offsets."""
        begin = 0
        for at in range(1, len(self.offsets) + 1):
            if at == len(self.offsets) or self.offsets[at] != self.offsets[at - 1] + 1:
                yield self.offsets[begin], self.rows.slice(begin, at - begin)
                begin = at


class KeyedReader:
    """A reader for one store. Its cache is bounded: by counts, and decoded rows by their bytes."""

    def __init__(self, store: ObjectStore, run_blocking: RunBlocking = asyncio.to_thread) -> None:
        self._store = store
        self._run_blocking = run_blocking
        self._versions: OrderedDict[PartitionId, KeyedVersion] = OrderedDict()
        self._footers: OrderedDict[str, pq.FileMetaData] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], KeyedRows] = OrderedDict()
        self._room = asyncio.Semaphore(1)
        """One row group is decoded at a time: it may be large, and cold readers must not take the
        memory of producers.
        """

    async def read(
        self, place: PartitionId, offset: int, border: int, bytes_max: int, compression: Compression = "none"
    ) -> list[StoredBatch]:
        """Return the next batches at or above `offset` and below `border`, where the log begins;
        none if nothing is left there.

        Raises DataDamaged, Unavailable, the store's errors.
        """
        found = await self.rows(place, offset, border)
        if found is None:
            return []
        return list(await self._run_blocking(partial(_encode, found, bytes_max, compression)))

    async def rows(self, place: PartitionId, offset: int, border: int) -> KeyedRows | None:
        """Return the next rows, at most to the end of their row group; None if nothing is left
        below `border`.

        Raises what `read` raises.
        """
        return await self._in_version(place, border, lambda version: self._rows(version, offset, border))

    async def _in_version(self, place: PartitionId, border: int, read: Callable[[KeyedVersion], Awaitable[T]]) -> T:
        """Read from a version that holds everything below `border`, again if another one replaces it meanwhile."""
        rereads = Rereads(
            ATTEMPTS_MAX,
            f"{keys.keyed_folder(place)}: its versions changed during each attempt to read them; retry later",
            retry_after_ms=100,
        )
        while True:
            rereads.begin()
            version = await self.version(place, border)
            try:
                return await read(version)
            except ObjectMissing as missing:
                await self._look_again(version, missing)

    async def version(self, place: PartitionId, border: int) -> KeyedVersion:
        """Return a version that holds everything below `border`. Raises DataDamaged if there is
        none.
        """
        known = self._versions.get(place)
        if known is None or known.end < border:
            newest = await newest_version(self._store, place)
            if newest is None or newest.version.end < border:
                raise DataDamaged(
                    f"{keys.keyed_folder(place)}: the log begins at offset {border}, and no version holds the records"
                    " before it",
                    object_key=keys.keyed_folder(place),
                )
            known = self._keep(newest.version)
        self._versions.move_to_end(place)
        return known

    def _keep(self, version: KeyedVersion) -> KeyedVersion:
        self._versions[version.place] = version
        while len(self._versions) > VERSIONS_MAX:
            self._versions.popitem(last=False)
        return version

    async def _look_again(self, version: KeyedVersion, missing: ObjectMissing) -> None:
        newest = await newest_version(self._store, version.place)
        if newest is None or newest.version.number == version.number:
            raise DataDamaged(
                f"{missing.message}, but {version.key} names it", object_key=missing.object_key
            ) from missing
        self._keep(newest.version)

    async def candidate(
        self, place: PartitionId, offset: int, border: int, timestamp_us: int
    ) -> tuple[int, int] | None:
        """Return the next range of offsets that may hold a record of this time or later: first and
        end. The search by time in `ledgermq_ledger.view.reader` uses it.
        """
        version = await self.version(place, border)
        for file in version.files:
            if file.last >= offset and file.first < border and file.timestamp_max_us >= timestamp_us:
                return max(offset, file.first), min(border, file.last + 1)
        return None

    async def file_at(self, place: PartitionId, offset: int, border: int) -> str:
        """Return the key of the file that holds this offset, if the version still has it; else "".

        Raises DataDamaged, Unavailable.
        """
        version = await self.version(place, border)
        return next((file.key for file in version.files if file.first <= offset <= file.last), "")

    async def find_key(
        self, place: PartitionId, offset: int, border: int, key: bytes, *, downwards: bool
    ) -> KeyMatches:
        """Search the next row group for a key: the first one that holds an offset from `offset` on, or
        (`downwards`) the last one that holds an offset up to it. Without one, nothing is left in that direction.

        Raises what `read` raises.
        """
        return await self._in_version(
            place, border, lambda version: self._find_key(version, offset, border, key, downwards=downwards)
        )

    async def _find_key(
        self, version: KeyedVersion, offset: int, border: int, key: bytes, *, downwards: bool
    ) -> KeyMatches:
        for file in reversed(version.files) if downwards else version.files:
            if file.first > offset if downwards else (file.last < offset or file.first >= border):
                continue
            footer = await self._footer(file)
            numbers = range(footer.num_row_groups)
            for number in reversed(numbers) if downwards else numbers:
                first, last = _bounds(footer, number, file)
                if first > offset if downwards else last < offset:
                    continue
                span = (first, offset + 1) if downwards else (offset, min(border, last + 1))
                if not may_hold_key(footer, number, key):
                    return KeyMatches(*span)
                table = await read_columns(self._store, file.key, footer, number, ["offset", "key"], self._run_blocking)
                rows = await self._run_blocking(partial(rows_with_key, table.column("key"), key))
                offsets = table.column("offset").take(pa.array(rows, pa.int64())).to_pylist()
                found = [each for each in offsets if span[0] <= each < span[1]]
                return KeyMatches(*span, found, key_bytes(footer, number))
        return KeyMatches(0, offset + 1) if downwards else KeyMatches(offset, border)

    async def _rows(self, version: KeyedVersion, offset: int, border: int) -> KeyedRows | None:
        for file in version.files:
            if file.last < offset or file.first >= border:
                continue
            footer = await self._footer(file)
            for number in range(footer.num_row_groups):
                if _last_offset(footer, number, file) < offset:
                    continue
                group = await self._group(file, footer, number)
                first, end = bisect_left(group.offsets, offset), bisect_left(group.offsets, border)
                if first < end:
                    return group.slice(first, end)
        return None

    async def _footer(self, file: KeyedFile) -> pq.FileMetaData:
        if file.key not in self._footers:
            self._footers[file.key] = await read_footer(self._store, file.key)
            while len(self._footers) > FOOTERS_MAX:
                self._footers.popitem(last=False)
        self._footers.move_to_end(file.key)
        return self._footers[file.key]

    async def _group(self, file: KeyedFile, footer: pq.FileMetaData, number: int) -> KeyedRows:
        async with self._room:
            found = self._groups.get((file.key, number))
            if found is None:
                names = ["offset", *SCHEMA.names]
                table = await read_columns(self._store, file.key, footer, number, names, self._run_blocking)
                found = await self._run_blocking(partial(_decoded, table))
                self._groups[file.key, number] = found
                while (
                    len(self._groups) > 1
                    and sum(group.rows.nbytes for group in self._groups.values()) > DECODED_BYTES_MAX
                ):
                    self._groups.popitem(last=False)
            self._groups.move_to_end((file.key, number))
        return found


def _last_offset(footer: pq.FileMetaData, number: int, file: KeyedFile) -> int:
    return _bounds(footer, number, file)[1]


def _bounds(footer: pq.FileMetaData, number: int, file: KeyedFile) -> tuple[int, int]:
    """Return the first and the last offset in a row group."""
    statistics = footer.row_group(number).column(PARQUET_SCHEMA.get_field_index("offset")).statistics
    if statistics is None or not statistics.has_min_max:
        raise DataDamaged(
            f"{file.key}: row group {number} has no statistics for the offset column", object_key=file.key
        )
    return int(statistics.min), int(statistics.max)


def _decoded(table: pa.Table) -> KeyedRows:
    return KeyedRows(table.column("offset").to_pylist(), table.select(SCHEMA.names).cast(SCHEMA))


def _encode(found: KeyedRows, bytes_max: int, compression: Compression) -> Iterator[StoredBatch]:
    """Yield batches of consecutive offsets, of at most about BATCH_BYTES_MAX, up to `bytes_max`, at
    least one.
    """
    sent = count = 0
    for first, rows in found.runs():
        step = max(1, rows.num_rows * min(bytes_max, BATCH_BYTES_MAX) // max(1, rows.nbytes))
        for at in range(0, rows.num_rows, step):
            part = rows.slice(at, step)
            data = encode_batch(part.combine_chunks().to_batches()[0], compression)
            if count and (sent + len(data) > bytes_max or count >= BATCHES_MAX):
                return
            yield StoredBatch(first + at, part.num_rows, crc32c(data), data)
            sent += len(data)
            count += 1

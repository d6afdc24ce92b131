"""Read records back from Parquet as record batches, for fetches below the offsets in segments.

The page list of a checkpoint names the files. Footers, pages and decoded row groups are kept in a
bounded cache, because a reader of old data usually continues. Only the bytes of the wanted row
group are fetched. Rows are encoded again as Arrow batches: same values and offsets, other bytes
than the producer's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary, proxy

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from ledgermq.errors import DataDamaged, OffsetOutOfRange
from ledgermq.protocol.batches.records import Compression, encode_batch
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.segments.stored_batch import StoredBatch
from ledgermq_ledger.log.segments.time_search import first_time_at
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.files.columns import SCHEMA as COLUMNS
from ledgermq_ledger.parquet.files.key_search import KeyMatches, key_bytes, may_hold_key, rows_with_key
from ledgermq_ledger.parquet.files.row_group import open_row_group, read_columns, read_row_group
from ledgermq_ledger.parquet.files.stored_file import read_footer
from ledgermq_ledger.parquet.merging.merged_list import MergedReader
from ledgermq_ledger.parquet.merging.names import parse_merged
from ledgermq_ledger.parquet.pages import PageReader

T = TypeVar("T")

DECODED_BYTES_MAX = 256 * 1024 * 1024
FOOTERS_MAX = 256
BATCH_BYTES_MAX = 1024 * 1024
"""Decoded size of one batch that is sent; a single larger row makes a larger one."""


@dataclass(frozen=True, slots=True)
class _RowGroup:
    first_offset: int
    rows: pa.Table
    bytes: int


class ParquetCache:
    """The cache of one store. Everything in it is immutable; counts and decoded bytes bound it."""

    def __init__(
        self,
        store: ObjectStore,
        run_blocking: RunBlocking = asyncio.to_thread,
        decoded_bytes_max: int = DECODED_BYTES_MAX,
    ) -> None:
        self._store = store
        self._run_blocking = run_blocking
        self._decoded_bytes_max = decoded_bytes_max
        self._pages: dict[int, PageReader] = {}
        self.merged = MergedReader(store)
        self._footers: OrderedDict[str, pq.FileMetaData] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], _RowGroup] = OrderedDict()
        self._room = asyncio.Semaphore(1)
        """One row group is decoded at a time: it may be large, and cold readers must not take the
        memory of producers.
        """

    def pages(self, bundle: int) -> PageReader:
        return self._pages.setdefault(bundle, PageReader(self._store, bundle))

    async def row_group(self, key: str, file_first: int, offset: int) -> _RowGroup:
        """Return the row group of a file that holds `offset`. Raises ObjectMissing, DataDamaged."""
        footer, number, first = await self._find(key, file_first, offset)
        return await self._group(key, footer, number, first)

    async def rows(
        self, file: fmt.ParquetFile, offset: int, columns: Sequence[str]
    ) -> AsyncGenerator[tuple[int, pa.RecordBatch], None]:
        """Yield the rows from `offset` on piece by piece, without caching them. Where a merged file is damaged they
        end, and the next look for that offset finds the small file.

        Raises ObjectMissing, DataDamaged; once rows come, only DataDamaged.
        """
        footer, number, at = await self._find(file.key, file.first_offset, offset)
        pieces = await open_row_group(self._store, file.key, footer, number, columns, self._run_blocking)

        async def rest(at: int) -> AsyncGenerator[tuple[int, pa.RecordBatch], None]:
            try:
                async with aclosing(pieces):
                    async for piece in pieces:
                        end = min(at + piece.num_rows, file.last_offset + 1)
                        if end > (first := max(at, offset)):
                            yield first, piece.slice(first - at, end - first)
                        at += piece.num_rows
            except DataDamaged:
                if parse_merged(file.key) is None:
                    raise
                self.merged.pass_over(file.key)

        return rest(at)

    async def first_at(self, file: fmt.ParquetFile, offset: int, timestamp_us: int) -> int | None:
        """Return the first offset, from `offset` on, of this time or later. It fetches only the
        times of row groups that may have it.

        Raises ObjectMissing, DataDamaged.
        """
        footer = await self._footer(file.key)
        first = file.first_offset
        for number in range(footer.num_row_groups):
            end = first + footer.row_group(number).num_rows
            if offset < end and _may_hold(footer, number, timestamp_us):
                table = await read_columns(self._store, file.key, footer, number, ["timestamp"], self._run_blocking)
                row = first_time_at(table.column("timestamp").cast(pa.int64()), timestamp_us, max(0, offset - first))
                if row is not None:
                    return first + row if first + row <= file.last_offset else None
            first = end
        return None

    async def find_key(self, file: fmt.ParquetFile, offset: int, key: bytes) -> KeyMatches:
        """Search the row group that holds `offset` for a key. It fetches only the column of keys, and nothing
        if the statistics deny the key.

        Raises ObjectMissing, DataDamaged.
        """
        footer, number, first = await self._find(file.key, file.first_offset, offset)
        end = min(first + footer.row_group(number).num_rows, file.last_offset + 1)
        if not may_hold_key(footer, number, key):
            return KeyMatches(first, end)
        table = await read_columns(self._store, file.key, footer, number, ["key"], self._run_blocking)
        rows = await self._run_blocking(partial(rows_with_key, table.column("key"), key))
        offsets = [first + row for row in rows if first + row < end]
        return KeyMatches(first, end, offsets, key_bytes(footer, number))

    async def _find(self, key: str, file_first: int, offset: int) -> tuple[pq.FileMetaData, int, int]:
        """Return (footer, number of the row group, its first offset)."""
        footer = await self._footer(key)
        first = file_first
        for number in range(footer.num_row_groups):
            end = first + footer.row_group(number).num_rows
            if offset < end:
                return footer, number, first
            first = end
        raise DataDamaged(
            f"{key}: it ends at offset {first - 1}, but the file list says that it holds {offset}", object_key=key
        )

    async def _footer(self, key: str) -> pq.FileMetaData:
        if key not in self._footers:
            self._footers[key] = await read_footer(self._store, key)
            while len(self._footers) > FOOTERS_MAX:
                self._footers.popitem(last=False)
        return self._footers[key]

    async def _group(self, key: str, footer: pq.FileMetaData, number: int, first: int) -> _RowGroup:
        async with self._room:
            found = self._groups.get((key, number))
            if found is None:
                table = await read_row_group(self._store, key, footer, number, self._run_blocking)
                found = _RowGroup(first, table, table.get_total_buffer_size())
                self._groups[key, number] = found
                self._evict()
            self._groups.move_to_end((key, number))
        return found

    def _evict(self) -> None:
        while len(self._groups) > 1 and sum(group.bytes for group in self._groups.values()) > self._decoded_bytes_max:
            self._groups.popitem(last=False)

    async def encode(
        self, group: _RowGroup, offset: int, bytes_max: int, end: int, compression: Compression
    ) -> list[StoredBatch]:
        return list(await self._run_blocking(partial(_encode, group, offset, bytes_max, end, compression)))


_caches: WeakKeyDictionary[ObjectStore, ParquetCache] = WeakKeyDictionary()
"""The caches for callers that pass none; each is dropped with its store, to which it has only a
weak proxy.
"""


async def read_parquet(
    store: ObjectStore,
    bundle: int,
    checkpoint: fmt.Checkpoint,
    topic_id: int,
    partition: int,
    offset: int,
    bytes_max: int,
    *,
    compression: Compression = "none",
    cache: ParquetCache | None = None,
) -> list[StoredBatch]:
    """Return batches from exactly `offset` on, at least one, about `bytes_max` bytes, at most to
    the end of the row group.

    Raises OffsetOutOfRange if `checkpoint` says that Parquet does not hold the offset,
    ObjectMissing if a newer checkpoint has replaced the file (read that checkpoint), DataDamaged.
    Without `cache` the store's own is used.
    """
    if cache is None:
        cache = _caches.get(store) or _caches.setdefault(store, ParquetCache(proxy(store)))
    key = PartitionId(topic_id, partition)

    async def read(file: fmt.ParquetFile) -> tuple[_RowGroup, int]:
        return await cache.row_group(file.key, file.first_offset, offset), file.last_offset + 1

    group, end = await read_file_at(cache, bundle, checkpoint, key, offset, read)
    return await cache.encode(group, offset, bytes_max, end, compression)


async def read_parquet_rows(
    cache: ParquetCache, bundle: int, checkpoint: fmt.Checkpoint, key: PartitionId, offset: int, columns: Sequence[str]
) -> AsyncGenerator[tuple[int, pa.RecordBatch], None]:
    """Yield the rows from exactly `offset` to the end of their row group, `columns` of the record
    schema, each piece with its first offset. They may end sooner, before the first of them even: read on from there.

    Raises what `read_parquet` raises; once rows come, only DataDamaged.
    """
    return await read_file_at(cache, bundle, checkpoint, key, offset, lambda file: cache.rows(file, offset, columns))


async def read_file_at(
    cache: ParquetCache,
    bundle: int,
    checkpoint: fmt.Checkpoint,
    key: PartitionId,
    offset: int,
    read: Callable[[fmt.ParquetFile], Awaitable[T]],
) -> T:
    """Read from the merged file that stands for an offset; where there is none, or it cannot be read, from the small
    one. Raises what `read_parquet` raises.
    """
    small = await file_at(cache, bundle, checkpoint, key, offset)
    merged = await cache.merged.at(partition_of(checkpoint, *key), offset)
    if merged is not None:
        try:
            return await read(merged)
        except (ObjectMissing, DataDamaged):
            cache.merged.pass_over(merged.key)  # the small file has the same records; `fsck` names the damage
    return await read(small)


async def file_at(
    cache: ParquetCache, bundle: int, checkpoint: fmt.Checkpoint, key: PartitionId, offset: int
) -> fmt.ParquetFile:
    """Return the file that holds an offset."""
    counters = partition_of(checkpoint, *key)
    if not counters.parquet_start <= offset < counters.parquet_end:
        raise OffsetOutOfRange(
            f"Parquet holds offsets {counters.parquet_start} to {counters.parquet_end - 1}, not {offset}"
        )
    files = await cache.pages(bundle).files_from(counters, offset)
    if not files:  # as of an internal topic, which has a snapshot instead
        raise DataDamaged(
            f"bundle {bundle}: no Parquet file is listed for topic id {key.topic_id} partition {key.partition}, offset"
            f" {offset}"
        )
    file = files[0]
    parsed = keys.parse_parquet(file.key)
    if parsed is None or (parsed.topic_id, parsed.partition) != key or file.first_offset > offset:
        raise DataDamaged(
            f"{file.key}: the file list says that it holds topic id {key.topic_id} partition {key.partition}, "
            f"offset {offset}, but its name does not",
            object_key=file.key,
        )
    return file


def _may_hold(footer: pq.FileMetaData, number: int, timestamp_us: int) -> bool:
    times = footer.row_group(number).column(COLUMNS.get_field_index("timestamp")).statistics
    return times is None or not times.has_min_max or times.max_raw >= timestamp_us


def _encode(group: _RowGroup, offset: int, bytes_max: int, end: int, compression: Compression) -> list[StoredBatch]:
    """Return batches from `offset` up to `end`, of about BATCH_BYTES_MAX decoded bytes each."""
    rows = group.rows.num_rows
    step = max(1, rows * min(bytes_max, BATCH_BYTES_MAX) // max(1, group.bytes))
    at = offset - group.first_offset
    sent = 0
    batches: list[StoredBatch] = []
    while at < min(rows, end - group.first_offset):
        part = group.rows.slice(at, step).combine_chunks().to_batches()[0]
        data = encode_batch(part, compression)
        if batches and sent + len(data) > bytes_max:
            break
        batches.append(StoredBatch(group.first_offset + at, part.num_rows, crc32c(data), data))
        sent += len(data)
        at += part.num_rows
    return batches

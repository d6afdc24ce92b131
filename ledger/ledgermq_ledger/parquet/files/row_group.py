"""Read one row group of a Parquet file of LedgerMQ, or some of its columns, by range GETs: whole,
or piece by piece.

A caller that reads a row group once should decode it piece by piece. Taking the memory of a whole
one from the kernel, and returning it, costs about as much processor time as decoding it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from ledgermq.errors import DataDamaged
from ledgermq.protocol.batches.records import SCHEMA
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore

GAP_BYTES = 256 * 1024
"""Gaps up to this size are read rather than skipped by another request."""
PIECE_BYTES = 4 * 1024 * 1024
"""Size that is decoded at a time, about."""


async def read_row_group(
    store: ObjectStore, key: str, footer: pq.FileMetaData, number: int, run_blocking: RunBlocking = asyncio.to_thread
) -> pa.Table:
    """Return a row group in the record schema. Raises ObjectMissing, DataDamaged."""
    table: pa.Table = await read_columns(store, key, footer, number, SCHEMA.names, run_blocking)
    return table.cast(SCHEMA)


async def read_columns(
    store: ObjectStore,
    key: str,
    footer: pq.FileMetaData,
    number: int,
    columns: Sequence[str],
    run_blocking: RunBlocking = asyncio.to_thread,
) -> pa.Table:
    """Return these columns, in their order. Raises ObjectMissing, DataDamaged."""
    parts = await _fetch(store, key, footer, number, columns)
    return await run_blocking(partial(_decode, footer, number, columns, parts, key))


async def open_row_group(
    store: ObjectStore,
    key: str,
    footer: pq.FileMetaData,
    number: int,
    columns: Sequence[str] = SCHEMA.names,
    run_blocking: RunBlocking = asyncio.to_thread,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the rows of a row group in order, `columns` of the record schema, once all their bytes
    are read.

    Raises ObjectMissing; once rows come, DataDamaged.
    """
    parts = await _fetch(store, key, footer, number, columns)

    async def pieces() -> AsyncGenerator[pa.RecordBatch, None]:
        decoded = _decoded(footer, number, columns, parts, key)
        while (piece := await run_blocking(partial(next, decoded, None))) is not None:
            yield piece

    return pieces()


async def _fetch(
    store: ObjectStore, key: str, footer: pq.FileMetaData, number: int, columns: Sequence[str]
) -> list[tuple[int, Buffer]]:
    runs = _runs_of(footer.row_group(number), columns)
    data = await asyncio.gather(*(store.get_range(key, start, length) for start, length in runs))
    return [(start, each) for (start, _), each in zip(runs, data, strict=True)]


def _runs_of(group: pq.RowGroupMetaData, wanted: Sequence[str]) -> list[tuple[int, int]]:
    """Return where the chunks of these columns are, joined if near: starts and lengths."""
    runs: list[tuple[int, int]] = []
    for column in sorted(_chunks_of(group, wanted), key=_start_of):
        start, length = _start_of(column), column.total_compressed_size
        if runs and start - sum(runs[-1]) <= GAP_BYTES:
            runs[-1] = (runs[-1][0], start + length - runs[-1][0])
        else:
            runs.append((start, length))
    return runs


def _chunks_of(group: pq.RowGroupMetaData, wanted: Sequence[str]) -> list[pq.ColumnChunkMetaData]:
    chunks = (group.column(i) for i in range(group.num_columns))
    return [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in wanted]


def _start_of(column: pq.ColumnChunkMetaData) -> int:
    start: int = column.data_page_offset
    return min(start, column.dictionary_page_offset) if column.has_dictionary_page else start


class _Parts(io.RawIOBase):
    """A file of which only some bytes are in memory; enough for a reader that already has the
    footer.
    """

    def __init__(self, parts: Sequence[tuple[int, Buffer]]) -> None:
        self._parts = [(start, memoryview(data)) for start, data in parts]
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        last, data = self._parts[-1]
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: last + len(data)}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        for start, data in self._parts:
            begin = self._at - start
            if 0 <= begin < len(data):
                found = bytes(data[begin:] if size < 0 else data[begin : begin + size])
                self._at += len(found)
                return found
        if self._at == self._parts[-1][0] + len(self._parts[-1][1]):
            return b""
        raise OSError(f"byte {self._at} was not fetched")


def _decode(
    footer: pq.FileMetaData, number: int, columns: Sequence[str], parts: Sequence[tuple[int, Buffer]], key: str
) -> pa.Table:
    with _damage(key, number):
        table = _opened(footer, parts).read_row_group(number, columns=list(columns), use_threads=False).select(columns)
        table.validate(full=True)
    return table


def _decoded(
    footer: pq.FileMetaData, number: int, columns: Sequence[str], parts: Sequence[tuple[int, Buffer]], key: str
) -> Iterator[pa.RecordBatch]:
    group = footer.row_group(number)
    size_bytes = sum(chunk.total_uncompressed_size for chunk in _chunks_of(group, columns))
    rows = max(1, group.num_rows * PIECE_BYTES // max(PIECE_BYTES, size_bytes))
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    count = 0
    with _damage(key, number):
        for batch in _opened(footer, parts).iter_batches(
            rows, row_groups=[number], columns=schema.names, use_threads=False
        ):
            batch.validate(full=True)
            count += batch.num_rows
            yield batch.select(schema.names).cast(schema)
        if count != group.num_rows:
            raise ValueError(f"it has {count} rows, but the footer says {group.num_rows}")


def _opened(footer: pq.FileMetaData, parts: Sequence[tuple[int, Buffer]]) -> pq.ParquetFile:
    return pq.ParquetFile(_Parts(parts), metadata=footer, pre_buffer=False, page_checksum_verification=True)


@contextmanager
def _damage(key: str, number: int) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DataDamaged(f"{key}: row group {number} cannot be read: {error}", object_key=key) from error

"""List stored Parquet files, and describe one by its footer: whether it is the plan's, and its outcome."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ledgermq.errors import DataDamaged
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.object_store.contract import Buffer, ObjectInfo, ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.files.columns import APPENDED, FooterNote
from ledgermq_ledger.parquet.files.footer_checksum import check_footer, footer_bytes
from ledgermq_ledger.typed.shape import VALUE_ERROR

FOOTER_GUESS_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A stored file. `size` in bytes; timestamps are 0 if no row has one, times of appends if it has no such
    column. `typed`: it has columns of typed values. Picklable.
    """

    key: str
    note: FooterNote
    size: int
    rows: int
    timestamp_min_us: int
    timestamp_max_us: int
    appended_min_us: int = 0
    appended_max_us: int = 0
    typed: bool = False

    def listed(self, plan: int, committed_ms: int) -> fmt.ParquetFile:
        """Return what a list says of the file. `plan`: the number of the plan, or of the merge, that made it."""
        return fmt.ParquetFile(
            key=self.key,
            first_offset=self.note.first_offset,
            last_offset=self.note.last_offset,
            size=self.size,
            timestamp_min_us=self.timestamp_min_us,
            timestamp_max_us=self.timestamp_max_us,
            plan=plan,
            committed_ms=committed_ms,
            appended_min_us=self.appended_min_us,
            appended_max_us=self.appended_max_us,
            typed=self.typed,
        )


async def list_files(store: ObjectStore) -> AsyncIterator[ObjectInfo]:
    """Yield every object in the folders of the logs' Parquet files, also those that LedgerMQ did not put."""
    for folder in keys.PARQUET_FOLDERS:
        async for info in store.list(folder):
            yield info


async def read_footer(store: ObjectStore, key: str) -> pq.FileMetaData:
    """Read a footer by one suffix GET, two if it is long. Raises ObjectMissing, DataDamaged."""
    suffix = await store.get_suffix(key, FOOTER_GUESS_BYTES)
    needed = footer_bytes(suffix, key)
    if needed > len(suffix):
        suffix = await store.get_suffix(key, needed)
    return parse_footer(suffix, key)


def parse_footer(data: Buffer | pa.Buffer, key: str) -> pq.FileMetaData:
    """Return the footer at the end of `data`. Raises DataDamaged."""
    footer = check_footer(data, key)
    try:
        return pq.read_metadata(pa.BufferReader(pa.py_buffer(footer)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataDamaged(f"{key}: its Parquet footer cannot be read: {error}", object_key=key) from error


async def read_stored_file(store: ObjectStore, key: str, expected: FooterNote) -> StoredFile | None:
    """Read a stored file; None if there is no such object.

    Raises DataDamaged if it is not the file that `expected` describes.
    """
    try:
        size = (await store.head(key)).size
        footer = await read_footer(store, key)
    except ObjectMissing:
        return None
    return describe(footer, key, size, expected)


def describe(footer: pq.FileMetaData, key: str, size: int, expected: FooterNote) -> StoredFile:
    """Describe a stored file. Raises DataDamaged if it is not `expected`."""
    note = FooterNote.decode(footer.metadata)
    if note is None or not note.is_same_file(expected):
        raise DataDamaged(f"{key}: it is not the file of this plan, but has its name", object_key=key)
    rows = 0 if note.failed else note.last_offset + 1 - note.first_offset
    if footer.num_rows != rows:
        raise DataDamaged(f"{key}: it has {footer.num_rows} rows, not {rows}", object_key=key)
    times = *_range_of(footer, "timestamp"), *_range_of(footer, APPENDED)
    return StoredFile(key, note, size, rows, *times, typed=VALUE_ERROR in footer.schema.names)


def _range_of(footer: pq.FileMetaData, name: str) -> tuple[int, int]:
    """Return the smallest and largest value of a column of times, in microseconds; 0, 0: it has none."""
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    found = [column.statistics for column in columns if column.path_in_schema == name]
    known = [statistics for statistics in found if statistics is not None and statistics.has_min_max]
    if not known:
        return 0, 0
    return min(s.min_raw for s in known), max(s.max_raw for s in known)

"""Find the records of a topic whose values could not be decoded, in the column `value_error` of its Parquet files. It
reads only, a bounded number of row groups at a time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from ledgermq.errors import DataDamaged, Unavailable
from ledgermq.protocol.naming.schema_ids import CONFLUENT, NONE
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import checkpoint_in_charge, newest_checkpoint, partition_of
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.files.row_group import open_row_group, read_columns
from ledgermq_ledger.parquet.files.stored_file import read_footer
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.topics.tables import bundle_before
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.typed.framing import ids_of
from ledgermq_ledger.typed.shape import VALUE_ERROR

LOOKS_MAX = 32
"""Files, and row groups of them, that one page looks into: each look is one request to the store or two."""
RETRY_AFTER_MS = 1000


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A record whose value could not be decoded. `schema_id`: as the value names it; None: it names none."""

    offset: int
    error: str
    schema_id: int | None


@dataclass(slots=True)
class UndecodedPage:
    """`next_offset`: where the next page begins. `at_end`: it is the end of what is compacted."""

    next_offset: int
    found: list[Undecoded] = field(default_factory=list)
    at_end: bool = False


async def find_undecoded(
    store: ObjectStore, topic: Topic, partition: int, offset: int, limit: int, run_blocking: RunBlocking
) -> UndecodedPage:
    """Return the first `limit` records at `offset` or behind it whose values could not be decoded, or those that
    `LOOKS_MAX` looks find. Records below the log start are left out.

    Raises Unavailable (the partition is between two bundles), DataDamaged, FormatNotSupported, the store's errors.
    """
    place = PartitionId(topic.id, partition)
    while True:
        checkpoint = await checkpoint_in_charge(store, bundle_before(topic, partition), place)
        if checkpoint is None:
            raise Unavailable(
                f"partition {partition} of topic {topic.name!r} is between two bundles; repeat the call",
                retry_after_ms=RETRY_AFTER_MS,
            )
        search = _Search(store, topic.settings.value_schema_framing, limit, run_blocking)
        counters = partition_of(checkpoint, *place)
        try:
            return await search.run(PageReader(store, checkpoint.bundle), counters, offset)
        except ObjectMissing as error:  # retention, or another process has replaced the list
            if (await newest_checkpoint(store, checkpoint.bundle)).number == checkpoint.number:
                raise DataDamaged(f"{error.message}, but the file list names it") from error


class _Search:
    def __init__(self, store: ObjectStore, framing: str, limit: int, run_blocking: RunBlocking) -> None:
        self._store, self._framing, self._limit, self._run_blocking = store, framing, limit, run_blocking
        self._looks = 0

    async def run(self, pages: PageReader, counters: fmt.PartitionCheckpoint, offset: int) -> UndecodedPage:
        page = UndecodedPage(max(offset, counters.parquet_start, counters.log_start))
        for file in await pages.files_from(counters, page.next_offset):
            if file.typed and not await self._take_file(file, page):
                return page
            page.next_offset = file.last_offset + 1
        page.next_offset = max(page.next_offset, counters.parquet_end)
        page.at_end = True
        return page

    async def _take_file(self, file: fmt.ParquetFile, page: UndecodedPage) -> bool:
        """Look into a file. Return whether all of it was looked at."""
        if self._is_over(page):
            return False
        footer, first = await read_footer(self._store, file.key), file.first_offset
        self._looks += 1
        for number in range(footer.num_row_groups):
            end = first + footer.row_group(number).num_rows
            if page.next_offset < end:
                if self._is_over(page):
                    return False
                await self._take_group(file.key, footer, number, first, page)
                if page.next_offset < end:
                    return False
            first = end
        return True

    def _is_over(self, page: UndecodedPage) -> bool:
        return self._looks >= LOOKS_MAX or len(page.found) >= self._limit

    async def _take_group(
        self, key: str, footer: pq.FileMetaData, number: int, first: int, page: UndecodedPage
    ) -> None:
        """Take in the rows of a row group, as many as the page has room for. `first`: offset of its first row."""
        self._looks += 1
        rows = footer.row_group(number).num_rows
        column = await read_columns(self._store, key, footer, number, [VALUE_ERROR], self._run_blocking)
        errors = {
            first + row: text
            for row, text in enumerate(column.column(VALUE_ERROR).to_pylist())
            if text is not None and first + row >= page.next_offset
        }
        wanted = sorted(errors)[: self._limit - len(page.found)]
        ids = await self._ids(key, footer, number, first, wanted)
        page.found += [Undecoded(offset, errors[offset], ids.get(offset)) for offset in wanted]
        page.next_offset = first + rows if len(wanted) == len(errors) else wanted[-1] + 1

    async def _ids(
        self, key: str, footer: pq.FileMetaData, number: int, first: int, wanted: list[int]
    ) -> dict[int, int | None]:
        """Return the ids of schemas that rows name, by offset. The column of values is read piece by piece."""
        if not wanted or self._framing == NONE:
            return {}
        name = "value" if self._framing == CONFLUENT else "headers"
        columns = ["value"] if name == "value" else ["value", "headers"]
        pieces: AsyncGenerator[pa.RecordBatch, None]
        pieces = await open_row_group(self._store, key, footer, number, columns, self._run_blocking)
        found: dict[int, int | None] = {}
        async with aclosing(pieces):
            async for piece in pieces:
                here = [offset for offset in wanted if first <= offset < first + piece.num_rows]
                chosen = piece.take(pa.array([offset - first for offset in here], pa.int64()))
                ids = ids_of(self._framing, chosen.column("value"), chosen.column(name))
                found |= dict(zip(here, ids.to_pylist(), strict=True))
                first += piece.num_rows
        return found

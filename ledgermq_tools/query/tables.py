"""Show topics to DuckDB as tables, over the one reader of ranges that Spark's source has too.

A table is a plan: ranges of offsets in Parquet files and in segments, made once for the whole
query. DuckDB may scan it several times, and gets the same rows each time. It passes on the columns
and the condition of each scan, so only these columns are read of Parquet files, and a file is left
out when its partition, its offsets or its times cannot meet the condition.

DuckDB scans in its own threads. The store is read in the event loop of the caller.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from ledgermq.client.consuming.message import TABLE_SCHEMA, table_of
from ledgermq.errors import InvalidRequest
from ledgermq.protocol.batches.records import SCHEMA
from ledgermq_ledger.view.ranges.range_read import OffsetRange, RangeReader

T = TypeVar("T")


class LoopCalls:
    """Runs coroutines in the event loop for threads that wait for them; `stop` ends the waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: set[Future[Any]] = set()
        self._is_stopped = False

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns. Raises what it raises, CancelledError after `stop`."""
        if self._is_stopped:
            work.close()
            raise asyncio.CancelledError
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._pending.add(future)
        try:
            return future.result()
        finally:
            self._pending.discard(future)

    def stop(self) -> None:
        self._is_stopped = True
        for future in list(self._pending):
            future.cancel()


class TopicTable(ds.InMemoryDataset):  # type: ignore[misc]
    """A topic as DuckDB scans it. Columns: those of its Parquet files, without `appended`.

    `ranges`: of this topic; None: the query was not planned with it.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(TABLE_SCHEMA.empty_table())
        self._topic = topic
        self.ranges: Sequence[OffsetRange] | None = None
        self._reader: RangeReader | None = None
        self._calls: LoopCalls | None = None
        self.error: BaseException | None = None
        """What the last scan failed with: DuckDB passes on only its text."""

    def plan(self, ranges: Sequence[OffsetRange], reader: RangeReader, calls: LoopCalls) -> None:
        """Take what the query reads of this topic."""
        self.ranges, self._reader, self._calls = ranges, reader, calls

    def scanner(self, columns: Sequence[str] | None = None, **options: Any) -> ds.Scanner:
        """Return one scan of the rows that meet the option `filter`: what DuckDB calls of a dataset."""
        condition: ds.Expression | None = options.pop("filter", None)
        if self.ranges is None:
            raise InvalidRequest(f"name the table {self._topic!r} in the query itself: it was not planned")
        wanted = TABLE_SCHEMA.names if columns is None else columns
        used = [name for name in TABLE_SCHEMA.names if name in wanted or _uses(condition, name)] or ["offset"]
        chosen = matching(self.ranges, condition)
        return ds.Scanner.from_batches(
            self._batches(chosen, used),
            schema=pa.schema([TABLE_SCHEMA.field(name) for name in used]),
            columns=list(wanted),
            filter=condition,
        )

    def _batches(self, ranges: Sequence[OffsetRange], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        assert self._calls is not None
        rows = self._rows(ranges, columns)
        try:
            while (batch := self._calls.wait(_next(rows))) is not None:
                yield batch
        except BaseException as error:
            self.error = error
            raise
        finally:
            if self.error is None:
                self._calls.wait(rows.aclose())

    async def _rows(
        self, ranges: Sequence[OffsetRange], columns: Sequence[str]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        assert self._reader is not None
        stored = [name for name in SCHEMA.names if name in columns] or ["timestampType"]
        for wanted in ranges:
            async for first, rows in self._reader.read(wanted, stored):
                yield table_of(rows, self._topic, wanted.key.partition, first, columns)


async def _next(rows: AsyncGenerator[pa.RecordBatch, None]) -> pa.RecordBatch | None:
    return await anext(rows, None)


def _uses(condition: ds.Expression | None, column: str) -> bool:
    return condition is not None and re.search(rf"\b{column}\b", str(condition)) is not None


def matching(ranges: Sequence[OffsetRange], condition: ds.Expression | None) -> list[OffsetRange]:
    """Return the ranges that may have rows of this condition."""
    if condition is None or not ranges:
        return list(ranges)
    may_want_null = "null" in str(condition) or "valid" in str(condition)  # then times say nothing
    form, places = ds.ParquetFileFormat(), fs.LocalFileSystem()
    fragments = [
        form.make_fragment(str(number), places, partition_expression=_holds(each, with_times=not may_want_null))
        for number, each in enumerate(ranges)
    ]  # nothing is opened: only what is said of them counts
    dataset = ds.FileSystemDataset(fragments, TABLE_SCHEMA, form, places)
    return [ranges[int(fragment.path)] for fragment in dataset.get_fragments(condition)]


def _holds(wanted: OffsetRange, *, with_times: bool) -> ds.Expression:
    """Return what is true of each row of a range."""
    offset = ds.field("offset")
    partition = pa.scalar(wanted.key.partition, pa.int32())
    found = (ds.field("partition") == partition) & (offset >= wanted.first) & (offset < wanted.end)
    if with_times and wanted.times_us is not None:
        low, high = (pa.scalar(each, TABLE_SCHEMA.field("timestamp").type) for each in wanted.times_us)
        found = found & (ds.field("timestamp") >= low) & (ds.field("timestamp") <= high)
    return found

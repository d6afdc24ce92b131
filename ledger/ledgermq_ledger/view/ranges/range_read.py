"""Read a range of offsets of one partition, planned in one process and read in another, maybe much
later: the unit of work of a query.

The planner (`plan_ranges`, over a `LedgerReader`) records where the batches are that are not in
Parquet, so the reader needs no LIST and no fold for them. When the range is read, they may have
moved to Parquet, and their slots may be empty or hold other segments, or the partition may have
moved to another bundle. Then the newest checkpoint says where they are now. A range always gives the
same rows, or fails once they are below the log start.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from heapq import heapify, heappush, heapreplace
from operator import itemgetter

import pyarrow as pa

from ledgermq.errors import CorruptFrame, DataDamaged, MessageTooLarge, OffsetOutOfRange
from ledgermq.protocol.batches.records import SCHEMA, decode_batch
from ledgermq.runtime.reread import Rereads
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keyed.reader import KeyedReader
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import bundle_of, newest_checkpoint, partition_of
from ledgermq_ledger.log.segments.stored_batch import StoredBatch
from ledgermq_ledger.object_store.contract import Buffer, ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.archiving.reading import ArchivedFile, ArchiveReader
from ledgermq_ledger.parquet.reader import ParquetCache, read_parquet_rows
from ledgermq_ledger.view.cold_reader import ColdReader, choose_batches
from ledgermq_ledger.view.fetch_index import Span
from ledgermq_ledger.view.partition_index import PartitionIndex, Place
from ledgermq_ledger.view.reader import LedgerReader

ATTEMPTS_MAX = 10
COLD_READS = 4
READ_BYTES = 8 * 1024 * 1024
JOINED_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `first` up to, without, `end`. `batches`: where those in segments were. `bytes`:
    about. Picklable.

    `at_hand`: the batches that the planner had read. `archived`: the archive file of offsets below
    the log start. `times_us`: no record of the range is earlier than the first, or later than the
    second; a record may have no time. None: not known.
    """

    bundle: int
    key: PartitionId
    first: int
    end: int
    bytes: int = 0
    batches: PartitionIndex = field(default_factory=PartitionIndex)
    at_hand: Mapping[Place, Buffer] = field(default_factory=dict)
    archived: ArchivedFile | None = None
    times_us: tuple[int, int] | None = None

    @property
    def is_sized(self) -> bool:
        """Return True if the size is known. For a cleaned range it is not: it holds some of these
        offsets, in files of any size.
        """
        return self.bytes > 0 or len(self.batches) > 0

    def part(self, first: int, end: int) -> OffsetRange:
        """Return a part of the range."""
        batches = self.batches.between(first, end)
        share = batches.size_bytes or self.bytes * (end - first) // max(1, self.end - self.first)
        return replace(self, first=first, end=end, bytes=share, batches=batches, at_hand=batches.among(self.at_hand))


async def plan_ranges(reader: LedgerReader, spans: Mapping[PartitionId, Span]) -> dict[PartitionId, list[OffsetRange]]:
    """Return the ranges of each span, cut where Parquet files to read begin and where Parquet ends. The
    reader has to know the ends.

    Raises what its `read` raises.
    """
    planned: dict[PartitionId, list[OffsetRange]] = {}
    rereads = Rereads(
        ATTEMPTS_MAX,
        f"bundle {reader.bundle}: its records moved during each attempt to plan the read; retry later",
        retry_after_ms=100,
    )
    while True:
        rereads.begin()
        left = {key: span for key, span in spans.items() if key not in planned}
        if not left:
            return planned
        borders = {key: _border(reader, key, span) for key, span in left.items()}
        files = {
            key: await reader.readable_files(key, first) for key, (first, _) in left.items() if first < borders[key]
        }
        batches = await reader.view.batches({key: (borders[key], end) for key, (_, end) in left.items()})
        for key, (first, end) in left.items():
            if (border := borders[key]) == _border(reader, key, (first, end)):
                planned[key] = _in_parquet(reader.bundle, key, first, border, files.get(key, []))
                if border < end:
                    found = batches[key]
                    planned[key].append(
                        OffsetRange(
                            reader.bundle, key, border, end, found.size_bytes, found, found.among(reader.at_hand)
                        )
                    )


def _border(reader: LedgerReader, key: PartitionId, span: Span) -> int:
    """Return where Parquet ends within the span."""
    return min(max(span[0], reader.view.parquet_end(key)), span[1])


def _in_parquet(
    bundle: int, key: PartitionId, first: int, border: int, files: Sequence[fmt.ParquetFile]
) -> list[OffsetRange]:
    log = min(border, max(first, files[0].first_offset)) if files else border
    ranges = [OffsetRange(bundle, key, first, log)] if first < log else []  # what was cleaned
    return ranges + [
        OffsetRange(
            bundle,
            key,
            max(first, file.first_offset),
            min(border, file.last_offset + 1),
            file.size,
            times_us=(file.timestamp_min_us, file.timestamp_max_us),
        )
        for file in files
        if file.first_offset < border
    ]


def split(ranges: Sequence[OffsetRange], count_min: int) -> list[OffsetRange]:
    """Split ranges into at least this many, if there are enough offsets: the largest are halved."""
    largest = [
        (each.first - each.end, number, each.first, each) for number, each in enumerate(ranges)
    ]  # a heap: the least goes first
    heapify(largest)
    while largest and len(largest) < count_min:
        length, number, _, each = largest[0]
        if length > -2:
            break
        middle = (each.first + each.end) // 2
        heapreplace(largest, (each.first - middle, number, each.first, each.part(each.first, middle)))
        heappush(largest, (middle - each.end, number, middle, each.part(middle, each.end)))
    return [each for *_, each in sorted(largest, key=itemgetter(1, 2))]


class RangeReader:
    """Reads ranges from one store. `read` yields (offset of the first row, rows), in order, and
    dense but for what was cleaned of keyed topics: of that each time the latest record of each key,
    as it is when the range is read.
    """

    def __init__(
        self, store: ObjectStore, run_blocking: RunBlocking = asyncio.to_thread, archive: ArchiveReader | None = None
    ) -> None:
        """`archive`: reads ranges that are archived."""
        self._store = store
        self._archive = archive
        self._parquet = ParquetCache(store, run_blocking)
        self._keyed = KeyedReader(store, run_blocking)
        self._pool = asyncio.Semaphore(COLD_READS)
        self._checkpoints: dict[int, fmt.Checkpoint] = {}

    async def read(
        self, wanted: OffsetRange, columns: Sequence[str] = SCHEMA.names, *, skip_lost: bool = False
    ) -> AsyncGenerator[tuple[int, pa.RecordBatch], None]:
        """`columns`: of the record schema, at least one; of Parquet files only these are fetched.

        `skip_lost`: go on where the log starts when retention has deleted the first of it, or end
        where the topic is gone.

        Raises OffsetOutOfRange (it was deleted, and must not be skipped), DataDamaged,
        FormatNotSupported, the store's errors.
        """
        offset = wanted.first
        while offset < wanted.end:
            try:
                read = await self._from_archive(wanted.archived, offset) or await self._from_segments(wanted, offset)
                found = _each(read) if read else await self._from_parquet(wanted, offset, columns)
            except OffsetOutOfRange:
                if not skip_lost:
                    raise
                offset = max(offset + 1, self._log_start(wanted, offset))
                continue
            async with aclosing(found):
                async for first, rows in found:
                    skip = max(0, offset - first)
                    rows = rows.slice(skip, max(0, wanted.end - first - skip))
                    if rows.num_rows:
                        yield first + skip, rows.select(columns)
                    offset = max(offset, first + skip + rows.num_rows)
                    if offset >= wanted.end:
                        break

    async def _from_archive(self, file: ArchivedFile | None, offset: int) -> list[tuple[int, pa.RecordBatch]]:
        if file is None:
            return []
        assert self._archive is not None, "the range was planned with an archive"
        first, rows = await self._archive.rows(file, offset)
        return [(first, batch) for batch in rows.combine_chunks().to_batches()]

    async def _from_segments(self, wanted: OffsetRange, offset: int) -> list[tuple[int, pa.RecordBatch]]:
        """Read from segments; empty if the records were not in segments, or have moved."""
        place = wanted.batches.at(offset)
        if place is None:
            return []
        batches = choose_batches(wanted.batches, place, READ_BYTES)
        try:
            stored = await ColdReader(self._store, wanted.bundle, self._pool, wanted.at_hand).read(batches)
            return _joined(
                [(batch.base_offset, _rows_of(batch, keys.segment(wanted.bundle, batches[0].slot))) for batch in stored]
            )
        except (ObjectMissing, DataDamaged):
            checkpoint = await self._newest(wanted.bundle)
            if checkpoint.trim_slot <= batches[0].slot:
                raise  # it is still to be there
            return []

    async def _from_parquet(
        self, wanted: OffsetRange, offset: int, columns: Sequence[str]
    ) -> AsyncGenerator[tuple[int, pa.RecordBatch], None]:
        checkpoint = self._checkpoints.get(wanted.bundle) or await self._newest(wanted.bundle)
        rereads = Rereads(
            ATTEMPTS_MAX,
            f"bundle {wanted.bundle}: its file lists changed during each attempt to read them; retry later",
            retry_after_ms=100,
        )
        while True:
            rereads.begin()
            if (bundle := bundle_of(checkpoint, wanted.key, offset)) != checkpoint.bundle:
                checkpoint = await self._newest(bundle)  # one from before would lead back
                continue
            try:
                border = min(wanted.end, partition_of(checkpoint, *wanted.key).parquet_start)
                if partition_of(checkpoint, *wanted.key).log_start <= offset < border:
                    return _each(await self._from_version(wanted.key, offset, border))
                return await read_parquet_rows(self._parquet, bundle, checkpoint, wanted.key, offset, columns)
            except (ObjectMissing, OffsetOutOfRange) as error:
                newer = await self._newest(bundle)
                if newer.number == checkpoint.number:
                    raise self._lost(error, wanted.key, offset, checkpoint) from error
                checkpoint = newer

    async def _from_version(self, key: PartitionId, offset: int, border: int) -> list[tuple[int, pa.RecordBatch]]:
        """Read what cleaning left below the border; if that is nothing, return no rows at the
        border.
        """
        found = await self._keyed.rows(key, offset, border)
        if found is None:
            return [(border, pa.RecordBatch.from_pylist([], SCHEMA))]
        return [(first, batch) for first, rows in found.runs() for batch in rows.combine_chunks().to_batches()]

    def _log_start(self, wanted: OffsetRange, offset: int) -> int:
        """Return the log start by the checkpoints that were read last; the end of the range if the
        topic is gone.
        """
        checkpoint = self._checkpoints[wanted.bundle]
        while (bundle := bundle_of(checkpoint, wanted.key, offset)) != checkpoint.bundle:
            checkpoint = self._checkpoints[bundle]
        found = (part for part in checkpoint.partitions if (part.topic_id, part.partition) == wanted.key)
        return next((part.log_start for part in found), wanted.end)

    @staticmethod
    def _lost(
        error: ObjectMissing | OffsetOutOfRange, key: PartitionId, offset: int, checkpoint: fmt.Checkpoint
    ) -> Exception:
        where = f"bundle {checkpoint.bundle}, topic id {key.topic_id} partition {key.partition}, offset {offset}"
        for part in checkpoint.partitions:
            if (part.topic_id, part.partition) == key and offset >= part.log_start:
                return DataDamaged(f"{where}: {error.message}, but no checkpoint trims it", object_key=error.object_key)
        return OffsetOutOfRange(f"{where}: the records were deleted before the read")

    async def _newest(self, bundle: int) -> fmt.Checkpoint:
        self._checkpoints[bundle] = await newest_checkpoint(self._store, bundle, self._checkpoints.get(bundle))
        return self._checkpoints[bundle]


async def _each(found: Sequence[tuple[int, pa.RecordBatch]]) -> AsyncGenerator[tuple[int, pa.RecordBatch], None]:
    for part in found:
        yield part


def _rows_of(batch: StoredBatch, object_key: str) -> pa.RecordBatch:
    try:
        return decode_batch(batch.data)
    except (CorruptFrame, MessageTooLarge) as error:
        raise DataDamaged(
            f"{object_key}: offset {batch.base_offset}: {error.message}", object_key=object_key
        ) from error


def _joined(parts: Sequence[tuple[int, pa.RecordBatch]]) -> list[tuple[int, pa.RecordBatch]]:
    """Join small neighbours: a consumer then pays for each tiny batch once, and not at every step."""
    found: list[tuple[int, pa.RecordBatch]] = []
    small: list[pa.RecordBatch] = []
    size_bytes = 0
    for at, (_, rows) in enumerate(parts):
        small.append(rows)
        size_bytes += rows.nbytes
        if size_bytes >= JOINED_BYTES or at + 1 == len(parts):
            found.append((parts[at + 1 - len(small)][0], small[0] if len(small) == 1 else pa.concat_batches(small)))
            small, size_bytes = [], 0
    return found

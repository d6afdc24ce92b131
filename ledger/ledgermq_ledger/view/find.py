"""`Finder`: finds the records of one ledger that have a key, and says where a record is stored.

A search goes through offsets in one direction, piece by piece: a row group of a Parquet file, of which it
reads the column of keys only, or neighbouring batches of segments. Batches in memory come first, also if
Parquet has them. What `search` returns is exact for the offsets that it has left behind: each record with
the key is returned, unless retention or cleaning has removed it meanwhile.

Nothing at or above `LedgerView.readable_end` is ever returned. Must not know brokers, or what a record means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from ledgermq.errors import CorruptFrame, DataDamaged, MessageTooLarge, OffsetOutOfRange
from ledgermq.protocol.batches.records import decode_batch
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keyed.reader import KeyedReader
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import read_index
from ledgermq_ledger.log.segments.stored_batch import StoredBatch
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.files.key_search import KeyMatches, rows_with_key
from ledgermq_ledger.parquet.reader import ParquetCache, file_at, read_file_at
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.fetch_index import Span
from ledgermq_ledger.view.partition_index import IndexedBatch
from ledgermq_ledger.view.reader import LedgerReader
from ledgermq_ledger.view.view import Found

PIECE_BYTES = 4 * 1024 * 1024
"""Of segments that are searched at a time; a larger batch is a piece by itself."""


@dataclass(frozen=True, slots=True)
class KeySearch:
    """A search for the records of a partition with a key, in offsets `first` up to, without, `end`. From
    `first` upwards (`oldest_first`), otherwise from `end` downwards.

    It stops at one of its bounds: `records_max`; `answer_bytes_max`, the data of the records that are
    returned, at least one; `read_bytes_max`, and `until_s`, a time of the loop's clock: at least one piece
    is searched.
    """

    place: PartitionId
    key: bytes
    first: int
    end: int
    oldest_first: bool
    records_max: int
    answer_bytes_max: int
    read_bytes_max: int
    until_s: float


@dataclass(frozen=True, slots=True)
class StoredAt:
    """Where a record is stored. `slot`: of its segment, with the position of its batch there; 0: the segment
    is trimmed, or will be at any moment. `file`: key of its Parquet file; "": it is in none. Times are of the
    writers' clocks, in ms; 0: not known.
    """

    slot: int = 0
    position: int = 0
    stored_ms: int = 0
    file: str = ""
    compacted_ms: int = 0


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """`row`: a record batch of one row, in the record schema."""

    offset: int
    row: pa.RecordBatch
    at: StoredAt


@dataclass(slots=True)
class SearchResult:
    """`records`: in the order of the search. `first`, `end`: the offsets that are left to search; none if they
    are equal.
    """

    first: int
    end: int
    records: list[FoundRecord] = field(default_factory=list)
    read_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        return self.first >= self.end


@dataclass(frozen=True, slots=True)
class _Piece:
    """What was searched, and rows that came along, by offset."""

    matches: KeyMatches
    rows: Mapping[int, pa.RecordBatch] = field(default_factory=dict)


class Finder:
    """Within one event loop; searches may run side by side. `pool`: bounds the reads of Parquet."""

    def __init__(
        self,
        reader: LedgerReader,
        store: ObjectStore,
        parquet: ParquetCache,
        keyed: KeyedReader,
        pool: asyncio.Semaphore,
        run_blocking: RunBlocking,
    ) -> None:
        self._reader = reader
        self._view = reader.view
        self._store = store
        self._parquet = parquet
        self._keyed = keyed
        self._pool = pool
        self._run_blocking = run_blocking

    async def search(self, wanted: KeySearch, topic: Topic) -> SearchResult:
        """Search until all is found, or a bound is reached.

        Raises DataDamaged, Unavailable, the store's errors.
        """
        left, size_bytes = SearchResult(wanted.first, wanted.end), 0
        loop = asyncio.get_running_loop()
        is_first = True
        while True:
            left.first = max(left.first, self._view.log_start(wanted.place, topic))
            left.end = max(left.first, min(left.end, self._view.readable_end(wanted.place)))
            is_spent = left.read_bytes >= wanted.read_bytes_max or loop.time() >= wanted.until_s
            if left.is_whole or len(left.records) >= wanted.records_max or (is_spent and not is_first):
                return left
            is_first = False
            span = (left.first, left.end)
            try:
                piece = await self._view.reread(partial(self._next_piece, wanted, topic, span), "searched")
            except OffsetOutOfRange:
                if self._view.log_start(wanted.place, topic) <= left.first:
                    raise
                continue  # retention was faster
            left.read_bytes += piece.matches.read_bytes
            offsets = [offset for offset in piece.matches.offsets if left.first <= offset < left.end]
            for offset in offsets if wanted.oldest_first else reversed(offsets):
                record = await self._found(wanted.place, offset, topic, piece.rows.get(offset))
                if record is None:
                    continue
                size_bytes += record.row.nbytes
                is_full = len(left.records) >= wanted.records_max or size_bytes > wanted.answer_bytes_max
                if left.records and is_full:
                    return left
                left.records.append(record)
                _go_past(left, offset, offset + 1, upwards=wanted.oldest_first)
            _go_past(left, piece.matches.first, piece.matches.end, upwards=wanted.oldest_first)

    async def record(self, place: PartitionId, offset: int, topic: Topic) -> FoundRecord | None:
        """Return the record with this offset; None if it was cleaned.

        Raises OffsetOutOfRange, DataDamaged, Unavailable, the store's errors.
        """
        end = self._view.readable_end(place)
        if offset >= end:
            await self._view.source.check_end()
            raise OffsetOutOfRange(f"{topic.name}/{place.partition} ends at offset {end}, so {offset} is not stored")
        return await self._record(place, offset, topic)

    async def stored_by(
        self, place: PartitionId, record: FoundRecord
    ) -> tuple[fmt.SegmentIndex, fmt.BatchEntry] | None:
        """Return the index of a record's segment, and the entry of its batch; None if the segment is gone.

        Raises DataDamaged, FormatNotSupported, the store's errors.
        """
        if not record.at.slot:
            return None
        try:
            index = (await read_index(self._store, self._reader.bundle, record.at.slot)).index
        except ObjectMissing:
            return None
        for entry in index.batches:
            if PartitionId(entry.topic_id, entry.partition) == place and entry.position == record.at.position:
                return index, entry
        return None  # another segment has its name now

    async def _found(
        self, place: PartitionId, offset: int, topic: Topic, row: pa.RecordBatch | None
    ) -> FoundRecord | None:
        """Return a record; None if it was removed since it was found."""
        try:
            return await self._record(place, offset, topic, row)
        except OffsetOutOfRange:
            if offset >= self._view.log_start(place, topic):
                raise
            return None

    async def _record(
        self, place: PartitionId, offset: int, topic: Topic, row: pa.RecordBatch | None = None
    ) -> FoundRecord | None:
        if row is None:
            row = await read_row(self._reader, self._run_blocking, place, offset, topic)
            if row is None:
                return None
        return FoundRecord(offset, row, await self._view.reread(partial(self._stored_at, place, offset), "found"))

    async def _stored_at(self, place: PartitionId, offset: int) -> StoredAt:
        view = self._view
        file, compacted_ms = "", 0
        if offset < (border := view.parquet_start(place)):
            file = await self._keyed.file_at(place, offset, border)
        elif offset < view.parquet_end(place):
            found = await file_at(self._parquet, self._reader.bundle, view.checkpoint, place, offset)
            file, compacted_ms = found.key, found.committed_ms
        indexed = view.find(place, offset)
        if indexed is None or (batch := indexed[0][indexed[1]]).slot < view.checkpoint.trim_slot:
            return StoredAt(file=file, compacted_ms=compacted_ms)
        stored_ms = view.index.created_ms(batch.slot) if batch.slot >= view.index.covered_from else 0
        return StoredAt(batch.slot, batch.position, stored_ms, file, compacted_ms)

    async def _next_piece(self, wanted: KeySearch, topic: Topic, span: Span) -> _Piece:
        """Search the piece that has the first offset of what is left, or the last one."""
        view, place = self._view, wanted.place
        at = span[0] if wanted.oldest_first else span[1] - 1
        if at < (border := view.parquet_start(place)):
            async with self._pool:
                return _Piece(
                    await self._keyed.find_key(place, at, border, wanted.key, downwards=not wanted.oldest_first)
                )
        indexed = view.find(place, at)
        is_held = indexed is not None and self._is_held(indexed[0][indexed[1]])
        if at >= view.parquet_end(place):
            indexed = await view.place(place, at)
        if indexed is None or (at < view.parquet_end(place) and not is_held):
            async with self._pool:
                search = partial(self._parquet.find_key, offset=at, key=wanted.key)
                bundle = self._reader.bundle
                return _Piece(await read_file_at(self._parquet, bundle, view.checkpoint, place, at, search))
        return await self._in_segments(wanted, topic, indexed, span)

    async def _in_segments(self, wanted: KeySearch, topic: Topic, indexed: Found, span: Span) -> _Piece:
        batches = self._neighbours(wanted, indexed, span)
        first, end = batches[0].base_offset, batches[-1].end
        size_bytes = sum(batch.length for batch in batches)
        offsets: list[int] = []
        rows: dict[int, pa.RecordBatch] = {}
        offset = max(first, span[0])
        nearest = slice(0, wanted.records_max) if wanted.oldest_first else slice(-wanted.records_max, None)
        while offset < end:
            read = await self._reader.read(wanted.place, offset, size_bytes, topic)
            if not read:
                end = offset
                break
            within = [batch for batch in read if batch.base_offset < end]
            found, kept = await self._run_blocking(partial(_with_key, within, wanted.key, nearest))
            offsets += found
            rows |= kept
            offset = read[-1].end
        return _Piece(KeyMatches(first, end, offsets, size_bytes), rows)

    def _neighbours(self, wanted: KeySearch, indexed: Found, span: Span) -> Sequence[IndexedBatch]:
        """Return the batch, and those next to it in the direction of the search that come from the same kind of
        place, of about PIECE_BYTES, ascending.
        """
        index, at = indexed
        step = 1 if wanted.oldest_first else -1
        found = [index[at]]
        is_held = self._is_held(index[at])
        border, size_bytes = self._view.parquet_end(wanted.place), index[at].length
        while 0 <= (at := at + step) < len(index):
            batch = index[at]
            size_bytes += batch.length
            if (
                size_bytes > PIECE_BYTES
                or batch.base_offset >= span[1]
                or batch.end <= span[0]
                or self._is_held(batch) is not is_held
                or (not is_held and batch.base_offset < border)
            ):
                break
            found.append(batch)
        return found if wanted.oldest_first else found[::-1]

    def _is_held(self, batch: IndexedBatch) -> bool:
        return self._view.held_bytes(batch) is not None


async def read_row(
    reader: LedgerReader, run_blocking: RunBlocking, place: PartitionId, offset: int, topic: Topic
) -> pa.RecordBatch | None:
    """Return the row with this offset; None if it was cleaned. Raises what the reader raises."""
    batches = await reader.read(place, offset, 1, topic)
    if not batches or batches[0].base_offset > offset:
        return None
    rows = await run_blocking(partial(_decoded, batches[0]))
    return _row(rows, offset - batches[0].base_offset)


def segment_key(bundle: int, at: StoredAt) -> str:
    """Return the key of a record's segment; "" if that is trimmed."""
    return keys.segment(bundle, at.slot) if at.slot else ""


def _go_past(left: SearchResult, first: int, end: int, *, upwards: bool) -> None:
    if upwards:
        left.first = max(left.first, end)
    else:
        left.end = min(left.end, first)


def _with_key(
    batches: Iterable[StoredBatch], key: bytes, nearest: slice
) -> tuple[list[int], dict[int, pa.RecordBatch]]:
    """Return the offsets of the records with the key, and of each batch the rows of the nearest ones."""
    offsets: list[int] = []
    kept: dict[int, pa.RecordBatch] = {}
    for batch in batches:
        rows = _decoded(batch)
        found = rows_with_key(rows.column("key"), key)
        offsets += [batch.base_offset + row for row in found]
        kept |= {batch.base_offset + row: _row(rows, row) for row in found[nearest]}
    return offsets, kept


def _row(rows: pa.RecordBatch, row: int) -> pa.RecordBatch:
    """Return a copy of one row, which does not keep the others alive."""
    return rows.take(pa.array([row], pa.int64()))


def _decoded(batch: StoredBatch) -> pa.RecordBatch:
    try:
        return decode_batch(batch.data)
    except (CorruptFrame, MessageTooLarge) as error:
        raise DataDamaged(f"the batch at offset {batch.base_offset} cannot be read: {error.message}") from error

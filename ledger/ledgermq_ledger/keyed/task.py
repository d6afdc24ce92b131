"""Run one task of a round of cleaning: a group of neighbouring files becomes one file of the
version. It is a plain function of (task, store).

The task reads the keys of the dirty part, then those of the group, decides which records stay, and
writes those, row group by row group. A group that is one file of the base in which every record
stays is named again unchanged. The last record below the version's end always stays, so that a
reader at any offset finds the next record and reaches the end.

A file's name holds the attempt id that was drawn for the round, and its content follows from its
name. A task that finds the file already there, perhaps from the same task elsewhere, uses it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ledgermq.errors import DataDamaged, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.keyed.latest import LatestOffsets, latest_of
from ledgermq_ledger.keyed.note import KeyedNote
from ledgermq_ledger.keyed.plan import CleaningInput
from ledgermq_ledger.keyed.version import KeyedFile
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.contract import AlreadyExists, ObjectMissing, ObjectStore, StoreUncertain
from ledgermq_ledger.object_store.settle import pause_before_retry
from ledgermq_ledger.parquet.compacting.task import PUT_ATTEMPTS_MAX
from ledgermq_ledger.parquet.files.columns import (
    APPENDED,
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS_MAX,
    SCHEMA,
    close_writer,
    open_writer,
)
from ledgermq_ledger.parquet.files.new_file import FileSink, NewFile
from ledgermq_ledger.parquet.files.row_group import read_columns
from ledgermq_ledger.parquet.files.stored_file import parse_footer, read_footer


@dataclass(frozen=True, slots=True)
class CleaningTask:
    """A task of a round. Picklable. `inputs`: the group.

    `dirty`: the log files whose keys decide. The rest as in `CleaningPlan`.
    """

    store_url: str
    cluster_id: str
    place: PartitionId
    topic: str
    number: int
    attempt: bytes
    inputs: tuple[CleaningInput, ...]
    dirty: tuple[CleaningInput, ...]
    end: int
    floor: int
    aged_end: int
    expired_us: int
    bloom: bool = False
    row_group_bytes: int = ROW_GROUP_BYTES

    @property
    def source_bytes(self) -> int:
        return sum(each.size for each in self.inputs)

    @property
    def work(self) -> str:
        """Describe the work to operators."""
        return f"clean {self.topic}/{self.place.partition}"

    async def run(self, store: ObjectStore, sources: Sources, run_blocking: RunBlocking) -> CleaningOutcome:
        """Run the task. Raises ObjectMissing, DataDamaged (naming the object), Unavailable, the
        store's errors.
        """
        return await _Run(self, store, sources, run_blocking).run()


@dataclass(frozen=True, slots=True)
class CleaningOutcome:
    """The file of the group in the version; None: none of its records stays. `read`: number of
    records that were read.
    """

    file: KeyedFile | None
    read: int


@dataclass(frozen=True, slots=True)
class _Looked:
    """The records of one file of the group that stay.

    `oldest_us`: the oldest of those that may still expire; None: there is none.
    """

    each: CleaningInput
    footer: pq.FileMetaData
    stays: pa.ChunkedArray
    oldest_us: int | None


class _Run:
    def __init__(self, task: CleaningTask, store: ObjectStore, sources: Sources, run_blocking: RunBlocking) -> None:
        self.task = task
        self.store = store
        self.sources = sources
        self.run_blocking = run_blocking

    async def run(self) -> CleaningOutcome:
        latest = await self._latest()
        looked = [await self._look_at(each, latest) for each in self.task.inputs]
        del latest
        read = sum(len(found.stays) for found in looked)
        file = await self._file_of(looked, read, sum(_count(found.stays) for found in looked))
        if file is None:
            return CleaningOutcome(None, read)
        oldest_us = min((found.oldest_us for found in looked if found.oldest_us is not None), default=0)
        return CleaningOutcome(replace(file, timestamp_min_us=oldest_us), read)

    async def _file_of(self, looked: Sequence[_Looked], read: int, stays: int) -> KeyedFile | None:
        """Return the file with the records that stay; None if none does."""
        first, last = max(self.task.inputs[0].first, self.task.floor), self.task.inputs[-1].last
        key = keys.keyed_file(self.task.place, first, last, self.task.number, self.task.attempt)
        only = self.task.inputs[0].clean
        if only is not None and len(self.task.inputs) == 1 and stays == read and only.first >= self.task.floor:
            return only
        if not stays:
            return None
        if (found := await self._stored(key)) is not None:
            return found
        has_appended = any(_has_appended(found.footer) for found in looked)
        builder = _Builder(self.task, stays, has_appended=has_appended)
        async for rows in self._rows(looked):
            await self.run_blocking(partial(builder.add, rows))
        note = builder.note(self.task, first, last)
        data = await self.run_blocking(partial(builder.finish, note))
        return await self._put(key, data, note)

    async def _latest(self) -> LatestOffsets:
        parts = []
        for each in self.task.dirty:
            offset = each.first
            async for table in self._columns(each, await self._footer(each), ["key"]):
                parts.append(table.append_column("offset", pa.arange(offset, offset + table.num_rows)))
                offset += table.num_rows
        latest: LatestOffsets = await self.run_blocking(partial(latest_of, parts))
        return latest

    async def _footer(self, each: CleaningInput) -> pq.FileMetaData:
        footer = await read_footer(self.store, each.key)
        expected = each.clean.rows if each.clean is not None else each.last + 1 - each.first
        if footer.num_rows != expected:
            raise DataDamaged(f"{each.key}: it has {footer.num_rows} rows, not {expected}", object_key=each.key)
        return footer

    async def _columns(
        self, each: CleaningInput, footer: pq.FileMetaData, names: Sequence[str]
    ) -> AsyncIterator[pa.Table]:
        for number in range(footer.num_row_groups):
            yield await read_columns(self.store, each.key, footer, number, names, self.run_blocking)

    async def _look_at(self, each: CleaningInput, latest: LatestOffsets) -> _Looked:
        footer = await self._footer(each)
        names = ["key", "offset", "timestamp", *([APPENDED] if _has_appended(footer) else [])]
        whole = _with_ages(pa.concat_tables([table async for table in self._columns(each, footer, names)]))
        dead = await self._dead_values(each, footer)
        stays = await self.run_blocking(partial(self._decide, whole, dead, latest, each.expires))
        return _Looked(each, footer, stays, await self.run_blocking(partial(self._oldest_us, whole, stays)))

    async def _dead_values(self, each: CleaningInput, footer: pq.FileMetaData) -> pa.ChunkedArray | None:
        """Return which values are null; None if no tombstone of this file can have aged."""
        if each.first >= self.task.aged_end or (each.clean is not None and not each.clean.tombstones):
            return None
        found = []
        async for table in self._columns(each, footer, ["value"]):
            found += pc.is_null(table.column("value")).chunks
        return pa.chunked_array(found, pa.bool_())

    def _decide(
        self, rows: pa.Table, dead: pa.ChunkedArray | None, latest: LatestOffsets, expires: bool
    ) -> pa.ChunkedArray:
        compute: Any = pc
        offsets = rows.column("offset")
        gone = compute.invert(latest.survivors(rows.column("key"), offsets))
        gone = compute.or_(gone, compute.less(offsets, self.task.floor))
        if dead is not None:
            aged = compute.and_(dead, compute.less(offsets, self.task.aged_end))
            gone = compute.or_(gone, compute.and_(aged, compute.is_valid(rows.column("key"))))
        if expires and self.task.expired_us:
            old = compute.less(rows.column(_AGE), self.task.expired_us)
            gone = compute.or_(gone, compute.fill_null(old, False))
        return compute.or_(compute.invert(gone), compute.equal(offsets, self.task.end - 1))

    def _oldest_us(self, rows: pa.Table, stays: pa.ChunkedArray) -> int | None:
        """Return the oldest time of the records that stay, without an expired last record: that one
        stays anyway.
        """
        compute: Any = pc
        times = rows.column(_AGE)
        is_last = compute.equal(rows.column("offset"), self.task.end - 1)
        lingers = compute.and_(is_last, compute.less(times, self.task.expired_us))
        found: int | None = compute.min(times.filter(compute.and_not(stays, lingers))).as_py()
        return found

    async def _rows(self, looked: Iterable[_Looked]) -> AsyncIterator[pa.Table]:
        for found in looked:
            at = 0
            for number in range(found.footer.num_row_groups):
                count = found.footer.row_group(number).num_rows
                part = found.stays.slice(at, count)
                at += count
                if _count(part):
                    names = [name for name in SCHEMA.names if name != APPENDED or _has_appended(found.footer)]
                    table = await read_columns(
                        self.store, found.each.key, found.footer, number, names, self.run_blocking
                    )
                    yield await self.run_blocking(partial(table.filter, part))

    async def _put(self, key: str, data: NewFile, note: KeyedNote) -> KeyedFile:
        for attempt in range(PUT_ATTEMPTS_MAX):
            try:
                await self.store.put_data(key, data.parts)
                return described(parse_footer(data.ending, key), key, data.size)
            except (AlreadyExists, StoreUncertain):
                if (found := await self._stored(key)) is not None:
                    return found
            await pause_before_retry(attempt, self.sources)
        raise Unavailable(f"gave up after {PUT_ATTEMPTS_MAX} attempts: {key} could not be put; retry later")

    async def _stored(self, key: str) -> KeyedFile | None:
        try:
            size = (await self.store.head(key)).size
            return described(await read_footer(self.store, key), key, size)
        except (ObjectMissing, StoreUncertain):
            return None


def described(footer: pq.FileMetaData, key: str, size: int) -> KeyedFile:
    """Describe a file of a version. Raises DataDamaged if it is not one, or differs from its note."""
    note = KeyedNote.decode(footer.metadata)
    if note is None or footer.num_rows != note.rows:
        raise DataDamaged(f"{key}: it is not a file of a keyed partition, or it lacks rows", object_key=key)
    return KeyedFile(
        key, note.first, note.last, note.rows, note.tombstones, size, note.timestamp_min_us, note.timestamp_max_us
    )


_AGE = "age"


def _with_ages(rows: pa.Table) -> pa.Table:
    """Add the time from which the age of each row counts: its timestamp, but no later than its append."""
    compute: Any = pc
    ages = rows.column("timestamp").cast(pa.int64())
    if APPENDED in rows.schema.names:
        appended = rows.column(APPENDED).cast(pa.int64())
        ages = compute.if_else(compute.fill_null(compute.greater(ages, appended), False), appended, ages)
    return rows.append_column(_AGE, ages)


def _has_appended(footer: pq.FileMetaData) -> bool:
    return APPENDED in footer.schema.names


def _count(mask: pa.ChunkedArray) -> int:
    return int(pc.sum(mask, min_count=0).as_py())


class _Builder:
    """Builds one file in memory. Blocking."""

    def __init__(self, task: CleaningTask, rows: int, *, has_appended: bool) -> None:
        self._sink = FileSink()
        self._writer = open_writer(self._sink, {"key": rows} if task.bloom else {}, has_appended=has_appended)
        self._has_appended = has_appended
        self._row_group_bytes = task.row_group_bytes
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._rows = self._tombstones = 0
        self._times: list[int] = []

    def add(self, rows: pa.Table) -> None:
        rows = rows.combine_chunks()
        if self._has_appended and APPENDED not in rows.schema.names:
            field = SCHEMA.field(APPENDED)
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        self._rows += rows.num_rows
        self._tombstones += rows.column("value").null_count
        times: Any = pc.min_max(rows.column("timestamp").cast(pa.int64())).as_py()
        self._times += [time for time in times.values() if time is not None]
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= self._row_group_bytes:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            rows = pa.concat_tables(self._pending).cast(self._writer.schema)
            self._writer.write_table(rows, row_group_size=ROW_GROUP_ROWS_MAX)
            self._pending, self._pending_bytes = [], 0

    def note(self, task: CleaningTask, first: int, last: int) -> KeyedNote:
        return KeyedNote(
            cluster=task.cluster_id,
            topic_id=task.place.topic_id,
            partition=task.place.partition,
            first=first,
            last=last,
            number=task.number,
            attempt=task.attempt.hex(),
            rows=self._rows,
            tombstones=self._tombstones,
            timestamp_min_us=min(self._times, default=0),
            timestamp_max_us=max(self._times, default=0),
        )

    def finish(self, note: KeyedNote) -> NewFile:
        self._flush()
        return close_writer(self._writer, self._sink, note)

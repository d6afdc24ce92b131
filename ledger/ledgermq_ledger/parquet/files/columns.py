"""Write the Parquet files of user topics: their columns, their encoding and their footers.

    key, value, topic, partition, offset, timestamp, timestampType, headers
           the columns of Spark's Kafka source, in its order and types
    tag    ours
    value_typed, value_error
           the value as a struct, by its schema, and why it is none: `ledgermq_ledger.typed`. Only
           where the plan names a subject; `value` stays as it is
    appended
           the store's date of the segment that brought the record, never below that of the record
           before it. It prunes where a producer's clock is wrong. It is no cursor: `offset` is

`topic` and `partition` stand inside the files although the folders say them too:
docs/decisions/0004-parquet-columns.md says why. zstd level 1, page index, statistics on key, offset
and times; row groups of `parquet.row.group.bytes`. Columns have field ids, which are never given to
others: 1 to 9 up to `tag`, 10 to 12 inside of `headers`, 13 `appended`, 14 `value_error`, 100
`value_typed`, from 101 on its fields, as the registry gave them. A plan says whether its
files have `appended`; those that do not are as earlier releases wrote them, without field ids. The
footer's key-value metadata names cluster, bundle, topic id, partition, offsets, plan and its put
id, by which a process knows whether the file is the plan's; and the outcome: "done", or "failed"
for a file without rows that stands for a batch that cannot be read. Another key says which calendar
times are in. Pages, footer and body have checksums.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ledgermq.protocol.batches.records import HEADERS
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.parquet.files.footer_checksum import BLANK
from ledgermq_ledger.parquet.files.new_file import FileSink, NewFile
from ledgermq_ledger.typed.column import TypedColumns

APPENDED = "appended"


def _field(field_id: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": b"%d" % field_id})


def _headers_with_ids() -> pa.ListType:
    """Return the type of headers, with field ids and the names that `HEADERS` has."""
    pair = HEADERS.value_type
    inner = pa.struct([_field(11 + i, pair.field(i).name, pair.field(i).type) for i in range(2)])
    return pa.list_(_field(10, HEADERS.value_field.name, inner))


SCHEMA = pa.schema(
    [
        _field(1, "key", pa.binary()),
        _field(2, "value", pa.binary()),
        _field(3, "topic", pa.string()),
        _field(4, "partition", pa.int32()),
        _field(5, "offset", pa.int64()),
        _field(6, "timestamp", pa.timestamp("us", tz="UTC")),
        _field(7, "timestampType", pa.int32()),
        _field(8, "headers", _headers_with_ids()),
        _field(9, "tag", pa.string()),
        _field(13, APPENDED, pa.timestamp("us", tz="UTC")),
    ]
)
SCHEMA_BEFORE = pa.schema([pa.field(f.name, HEADERS if f.name == "headers" else f.type) for f in SCHEMA][:-1])
"""Columns of files whose plan asks for no `appended`: those of earlier releases, which have no field ids either."""
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Of a plan that does not say another size."""
ROW_GROUP_ROWS_MAX = 4 * 1024 * 1024
SMALL_BATCH_ROWS = 256
SMALL_BATCHES_MAX = 1024
"""Number of small waiting batches that become one: each takes a kilobyte or two besides its rows,
and keeps everything alive that was read with it.
"""
BLOOM_FALSE_POSITIVES = 0.01
TYPED_STATISTICS_MAX = 32
"""Columns of typed values with bounds in the footer, the first ones: each takes room in it."""
_METADATA_KEY = b"ledgermq"
PROLEPTIC_CALENDAR = {b"org.apache.spark.version": b"3.0.0"}
"""Spark takes times of such files as they are. Without this key Spark 3 refuses times before 1900 by default,
because they may be in the calendar that Spark 2 wrote. Other readers ignore it.
"""


@dataclass(frozen=True, slots=True)
class FooterNote:
    """Stored as JSON under the key "ledgermq" of a footer.

    `failed` is empty for a file that holds its records.
    """

    cluster: str
    bundle: int
    topic_id: int
    partition: int
    first_offset: int
    last_offset: int
    plan: int
    plan_put_id: str
    failed: str = ""
    damaged_object: str = ""

    def encode(self) -> dict[bytes, bytes]:
        found = {name: getattr(self, name) for name in self.__slots__}
        return {
            _METADATA_KEY: (
                json.dumps({"format": 1, "checksum": BLANK, "body_checksum": BLANK, **found}, sort_keys=True).encode()
            )
        }

    @classmethod
    def decode(cls, metadata: dict[bytes, bytes] | None) -> FooterNote | None:
        """Return the note; None if it is not a file of LedgerMQ, or of a later format."""
        try:
            found: Any = json.loads((metadata or {})[_METADATA_KEY])
            return cls(**{name: found[name] for name in cls.__slots__}) if found["format"] == 1 else None
        except (KeyError, ValueError, TypeError, RecursionError):
            return None

    def is_same_file(self, other: FooterNote) -> bool:
        """Return True if place, range and plan are the same, whatever the outcome."""
        names = ("cluster", "bundle", "topic_id", "partition", "first_offset", "last_offset", "plan", "plan_put_id")
        return all(getattr(self, name) == getattr(other, name) for name in names)


def note_of_file(
    file: fmt.PlannedFile, plan: fmt.CompactionPlan, cluster_id: str, failed: str = "", damaged: str = ""
) -> FooterNote:
    """Return the note of a planned file. `damaged`: the object that holds the batch which cannot be
    read.
    """
    return FooterNote(
        cluster=cluster_id,
        bundle=plan.bundle,
        topic_id=file.topic_id,
        partition=file.partition,
        first_offset=file.first_offset,
        last_offset=file.last_offset,
        plan=plan.number,
        plan_put_id=plan.put_id.hex(),
        failed=failed,
        damaged_object=damaged,
    )


def row_group_bytes_of(file: fmt.PlannedFile) -> int:
    """Return the decoded size at which a row group of the file ends."""
    return file.row_group_bytes or ROW_GROUP_BYTES


class ParquetBuilder:
    """Builds one file in memory from its batches, in order of offset.

    Blocking: runs where `run_blocking` runs it.
    """

    def __init__(self, file: fmt.PlannedFile, typed: TypedColumns | None = None) -> None:
        """`typed`: makes the columns of typed values, of a file whose plan asks for them."""
        self._file, self._typed = file, typed
        self._typed_fields = () if typed is None else typed.fields
        self._next = file.first_offset
        self._waiting: list[pa.RecordBatch] = []
        self._small = 0  # of those that wait, the last ones
        self._appended_us = file.appended_floor_us
        self._appended: list[tuple[int, int]] = []
        """Time of the append of the rows that wait, as (end among all rows of the group, time), by runs."""
        self._row_group_bytes = row_group_bytes_of(file)
        self._sink = FileSink()
        self._writer: pq.ParquetWriter | None = None
        self.pending_bytes = 0
        """Decoded bytes that wait for their row group."""

    def add(self, batch: pa.RecordBatch, base_offset: int, stored_us: int = 0) -> None:
        """Add the part of a record batch that belongs to the file; its first row has offset
        `base_offset`. `stored_us`: the store's date of its segment.
        """
        skip = max(0, self._file.first_offset - base_offset)
        rows = min(batch.num_rows, self._file.last_offset + 1 - base_offset) - skip
        if rows <= 0 or base_offset + skip != self._next:  # safety invariants 2, 3 and 8
            raise AssertionError(
                f"{self._file.key}: offset {self._next} is next, but the batch has {batch.num_rows} rows from"
                f" {base_offset}"
            )
        size_bytes = batch.get_total_buffer_size() if skip == 0 else None
        self._wait(batch.slice(skip, rows), [(rows, stored_us)], size_bytes)

    def add_runs(self, batch: pa.RecordBatch, base_offset: int, appended: Sequence[tuple[int, int]]) -> None:
        """Add all rows of a record batch that follows the last one, as another file of the log had them. `appended`:
        (rows, time of the append in microseconds) by runs; none: that file has no such column.
        """
        if base_offset != self._next or sum(rows for rows, _ in appended) not in (0, batch.num_rows):
            raise AssertionError(
                f"{self._file.key}: offset {self._next} is next, but the batch begins at {base_offset}"
            )
        self._wait(batch, appended or [(batch.num_rows, 0)], None)

    def _wait(self, batch: pa.RecordBatch, appended: Sequence[tuple[int, int]], size_bytes: int | None) -> None:
        self._waiting.append(batch)
        self._small = self._small + 1 if batch.num_rows < SMALL_BATCH_ROWS else 0
        if self._small == SMALL_BATCHES_MAX:
            self._waiting[-SMALL_BATCHES_MAX:] = [pa.concat_batches(self._waiting[-SMALL_BATCHES_MAX:])]
            self._small = 0
        self._next += batch.num_rows
        for rows, stored_us in appended:
            self._note_append(rows, stored_us)
        self.pending_bytes += batch.nbytes if size_bytes is None else size_bytes
        if self.pending_bytes >= self._row_group_bytes:
            self.flush()

    def _note_append(self, rows: int, stored_us: int) -> None:
        """Note when the next rows were appended: never before those in front of them."""
        self._appended_us = max(self._appended_us, stored_us)
        end = (self._appended[-1][0] if self._appended else 0) + rows
        if self._appended and self._appended[-1][1] == self._appended_us:
            self._appended.pop()
        self._appended.append((end, self._appended_us))

    def _appended_column(self) -> pa.Array:
        ends, times = zip(*self._appended, strict=True)
        compute: Any = pc
        runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.array(times, pa.int64()))
        return compute.run_end_decode(runs).cast(SCHEMA.field(APPENDED).type)

    def flush(self) -> None:
        """Write what is pending as a row group."""
        if self._waiting:
            rows = pa.Table.from_batches(self._waiting)
            if rows.num_rows < len(self._waiting) * SMALL_BATCH_ROWS:  # a column in many pieces is slow to write
                rows = rows.combine_chunks()
            table = _with_place(rows, self._file.topic, self._file.partition, self._next - rows.num_rows)
            if self._typed is not None:
                for field, column in zip(self._typed_fields, self._typed.of(rows), strict=True):
                    table = table.append_column(field, column)
            if self._file.has_appended:
                table = table.append_column(SCHEMA.field(APPENDED), self._appended_column())
            self._open().write_table(table, row_group_size=ROW_GROUP_ROWS_MAX)
            self._waiting, self._small, self.pending_bytes, self._appended = [], 0, 0, []

    def finish(self, note: FooterNote) -> NewFile:
        if self._next != self._file.last_offset + 1:
            raise AssertionError(f"{self._file.key}: it would end at {self._next - 1}")
        self.flush()
        return close_writer(self._open(), self._sink, note)

    def _open(self) -> pq.ParquetWriter:
        if self._writer is None:
            rows = self._file.last_offset + 1 - self._file.first_offset
            bloom = dict.fromkeys(self._file.bloom_columns, rows)
            self._writer = open_writer(
                self._sink, bloom, has_appended=self._file.has_appended, typed=self._typed_fields
            )
        return self._writer


def empty_file(note: FooterNote, *, has_appended: bool = False, typed: Sequence[pa.Field] = ()) -> NewFile:
    """Return a file without rows, whose note says why."""
    sink = FileSink()
    return close_writer(open_writer(sink, {}, has_appended=has_appended, typed=typed), sink, note)


def _with_place(records: pa.Table, topic: str, partition: int, first: int) -> pa.Table:
    """Add topic, partition and offset columns to records."""
    rows = records.num_rows
    return pa.Table.from_arrays(
        [
            records.column("key"),
            records.column("value"),
            pa.repeat(pa.scalar(topic, pa.string()), rows),
            pa.repeat(pa.scalar(partition, pa.int32()), rows),
            pa.arange(first, first + rows),
            records.column("timestamp"),
            records.column("timestampType"),
            records.column("headers"),
            records.column("tag"),
        ],
        schema=SCHEMA_BEFORE,
    )


class Note(Protocol):
    def encode(self) -> dict[bytes, bytes]:
        """Return the key-value metadata of the footer, with room for the checksums."""


def schema_of(*, has_appended: bool = True, typed: Sequence[pa.Field] = ()) -> pa.Schema:
    """Return the columns of a file: those of all files, those of typed values after `tag`, `appended`. `typed` needs
    field ids in all of them, and so `has_appended`.
    """
    if not has_appended:
        return pa.schema([*SCHEMA_BEFORE, *typed])
    return pa.schema([*list(SCHEMA)[:-1], *typed, SCHEMA.field(APPENDED)])


def open_writer(
    sink: FileSink | pa.NativeFile,
    bloom: dict[str, int],
    *,
    has_appended: bool = True,
    typed: Sequence[pa.Field] = (),
) -> pq.ParquetWriter:
    """Open a writer. `bloom`: columns that get a Bloom filter, with the number of distinct values
    to expect. `has_appended`: the file has the column `appended`. `typed`: columns of typed values.
    """
    rising = ["offset", "timestamp", APPENDED] if has_appended else ["offset", "timestamp"]
    leaves = [path for field in typed for path in leaves_of(field)]
    options = {name: {"ndv": max(1, rows), "fpp": BLOOM_FALSE_POSITIVES} for name, rows in bloom.items()}
    return pq.ParquetWriter(
        pa.PythonFile(sink, mode="w") if isinstance(sink, FileSink) else sink,
        schema_of(has_appended=has_appended, typed=typed),
        compression="zstd",
        compression_level=1,
        use_dictionary=["key", "topic", "partition", "timestampType", "tag", *leaves],
        column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
        write_statistics=["key", "topic", "partition", *rising, *leaves[:TYPED_STATISTICS_MAX]],
        write_page_index=True,
        write_page_checksum=True,
        sorting_columns=[pq.SortingColumn(SCHEMA.get_field_index("offset"))],
        bloom_filter_options=options or None,
    )


def leaves_of(field: pa.Field, prefix: str = "") -> list[str]:
    """Return the paths of the columns in a file that have one value a row: those outside of lists and maps."""
    path = f"{prefix}{field.name}"
    if pa.types.is_struct(field.type):
        return [leaf for inner in field.type for leaf in leaves_of(inner, f"{path}.")]
    return [] if pa.types.is_nested(field.type) else [path]


def close_writer(writer: pq.ParquetWriter, sink: FileSink, note: Note) -> NewFile:
    writer.add_key_value_metadata({**note.encode(), **PROLEPTIC_CALENDAR})
    writer.close()
    return sink.whole()

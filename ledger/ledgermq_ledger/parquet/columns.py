"""Write the Parquet files of user topics: their columns, their encoding and their footers.

    key, value, topic, partition, offset, timestamp, timestampType, headers
           the columns of Spark's Kafka source, in its order and types
    tag    ours

`topic` and `partition` stand inside the files although the folders say them too:
docs/decisions/0004-parquet-columns.md says why. zstd level 1, page index, statistics on key, offset
and timestamp; row groups of about 64 MB. The footer's key-value metadata names cluster, bundle,
topic id, partition, offsets, plan and its put id, by which a process knows whether the file
is the plan's; and the outcome: "done", or "failed" for a file without rows that stands for a batch
that cannot be read. Another key says which calendar times are in. Pages, footer and body have
checksums.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from ledgermq.protocol.records import HEADERS
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.parquet.footer_checksum import BLANK
from ledgermq_ledger.parquet.new_file import FileSink, NewFile

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
        pa.field("tag", pa.string()),
    ]
)
ROW_GROUP_BYTES = 64 * 1024 * 1024
ROW_GROUP_ROWS_MAX = 4 * 1024 * 1024
SMALL_BATCH_ROWS = 256
SMALL_BATCHES_MAX = 1024
"""Number of small waiting batches that become one: each takes a kilobyte or two besides its rows,
and keeps everything alive that was read with it.
"""
BLOOM_FALSE_POSITIVES = 0.01
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


class ParquetBuilder:
    """Builds one file in memory from its batches, in order of offset.

    Blocking: runs where `run_blocking` runs it.
    """

    def __init__(self, file: fmt.PlannedFile) -> None:
        self._file = file
        self._next = file.first_offset
        self._waiting: list[pa.RecordBatch] = []
        self._small = 0  # of those that wait, the last ones
        self._sink = FileSink()
        self._writer: pq.ParquetWriter | None = None
        self.pending_bytes = 0
        """Decoded bytes that wait for their row group."""

    def add(self, batch: pa.RecordBatch, base_offset: int) -> None:
        """Add the part of a record batch that belongs to the file; its first row has offset
        `base_offset`.
        """
        skip = max(0, self._file.first_offset - base_offset)
        rows = min(batch.num_rows, self._file.last_offset + 1 - base_offset) - skip
        if rows <= 0 or base_offset + skip != self._next:  # safety invariants 2, 3 and 8
            raise AssertionError(
                f"{self._file.key}: offset {self._next} is next, but the batch has {batch.num_rows} rows from"
                f" {base_offset}"
            )
        batch = batch.slice(skip, rows)
        self._waiting.append(batch)
        self._small = self._small + 1 if rows < SMALL_BATCH_ROWS else 0
        if self._small == SMALL_BATCHES_MAX:
            self._waiting[-SMALL_BATCHES_MAX:] = [pa.concat_batches(self._waiting[-SMALL_BATCHES_MAX:])]
            self._small = 0
        self._next += batch.num_rows
        self.pending_bytes += batch.get_total_buffer_size() if skip == 0 else batch.nbytes
        if self.pending_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is pending as a row group."""
        if self._waiting:
            rows = pa.Table.from_batches(self._waiting)
            if rows.num_rows < len(self._waiting) * SMALL_BATCH_ROWS:  # a column in many pieces is slow to write
                rows = rows.combine_chunks()
            table = _with_place(rows, self._file.topic, self._file.partition, self._next - rows.num_rows)
            self._open().write_table(table, row_group_size=ROW_GROUP_ROWS_MAX)
            self._waiting, self._small, self.pending_bytes = [], 0, 0

    def finish(self, note: FooterNote) -> NewFile:
        if self._next != self._file.last_offset + 1:
            raise AssertionError(f"{self._file.key}: it would end at {self._next - 1}")
        self.flush()
        return close_writer(self._open(), self._sink, note)

    def _open(self) -> pq.ParquetWriter:
        if self._writer is None:
            rows = self._file.last_offset + 1 - self._file.first_offset
            self._writer = open_writer(self._sink, dict.fromkeys(self._file.bloom_columns, rows))
        return self._writer


def empty_file(note: FooterNote) -> NewFile:
    """Return a file without rows, whose note says why."""
    sink = FileSink()
    return close_writer(open_writer(sink, {}), sink, note)


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
        schema=SCHEMA,
    )


class Note(Protocol):
    def encode(self) -> dict[bytes, bytes]:
        """Return the key-value metadata of the footer, with room for the checksums."""


def open_writer(sink: FileSink | pa.NativeFile, bloom: dict[str, int]) -> pq.ParquetWriter:
    """Open a writer. `bloom`: columns that get a Bloom filter, with the number of distinct values
    to expect.
    """
    options = {name: {"ndv": max(1, rows), "fpp": BLOOM_FALSE_POSITIVES} for name, rows in bloom.items()}
    return pq.ParquetWriter(
        pa.PythonFile(sink, mode="w") if isinstance(sink, FileSink) else sink,
        SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=["key", "topic", "partition", "timestampType", "tag"],
        column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
        write_statistics=["key", "topic", "partition", "offset", "timestamp"],
        write_page_index=True,
        write_page_checksum=True,
        sorting_columns=[pq.SortingColumn(SCHEMA.get_field_index("offset"))],
        bloom_filter_options=options or None,
    )


def close_writer(writer: pq.ParquetWriter, sink: FileSink, note: Note) -> NewFile:
    writer.add_key_value_metadata({**note.encode(), **PROLEPTIC_CALENDAR})
    writer.close()
    return sink.whole()

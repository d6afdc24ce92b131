"""Check one Parquet file of LedgerMQ: its footer against its name, and every property of its rows."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.keys import ParquetName, is_internal
from ledgermq_ledger.parquet.files.columns import APPENDED, SCHEMA_BEFORE, FooterNote, schema_of
from ledgermq_ledger.parquet.files.footer_checksum import check_whole
from ledgermq_ledger.typed.shape import VALUE_ERROR, VALUE_TYPED


def read_rows(data: bytes, key: str) -> pa.Table | str:
    """Return the table, or what is wrong with it. Blocking. Raises DataDamaged."""
    check_whole(data, key)
    try:
        table = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).read()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"it cannot be read: {error}"
    typed = [each for each in table.schema if each.name in (VALUE_TYPED, VALUE_ERROR)]
    if table.schema.remove_metadata() not in (schema_of(typed=typed), SCHEMA_BEFORE):
        return "its columns are not those of a Parquet file of LedgerMQ"
    return table


def check_footer(
    footer: pq.FileMetaData, key: str, name: ParquetName, cluster: ClusterSettings, problems: Problems
) -> FooterNote | None:
    """Check the footer of a file of the log against the file's name; return None if it is of
    another cluster.
    """
    note = FooterNote.decode(footer.metadata)
    if note is None or not cluster.wrote(note.cluster):
        problems.damage(key, "FOREIGN_FILE", "it is not a file of this cluster, but Spark reads it")
        return None
    said = (note.topic_id, note.partition, note.first_offset, note.last_offset, note.plan)
    named = (name.topic_id, name.partition, name.first_offset, name.last_offset, name.plan)
    if said != named:
        problems.damage(
            key,
            "WRONG_NAME",
            f"its footer says topic id, partition, offsets and plan {said}, but its name says {named}",
        )
    expected = 0 if note.failed else name.last_offset + 1 - name.first_offset
    if footer.num_rows != expected:
        problems.damage(key, "WRONG_ROWS", f"it has {footer.num_rows} rows, not {expected}")
    return note


def find_wrong_rows(data: bytes, key: str, name: ParquetName) -> str | None:
    """Read all of the file at `key` and return what is wrong with it. Blocking. Raises DataDamaged."""
    table = read_rows(data, key)
    if isinstance(table, str):
        return table
    count = table.num_rows
    expected: Any = pa.chunked_array([pa.arange(name.first_offset, name.first_offset + count)], pa.int64())
    if not table.column("offset").equals(expected):
        return "its offsets do not run without a gap from the first to the last offset in its name"
    if APPENDED in table.schema.names and not rises(table.column(APPENDED)):
        return "its times of appends fall, or are missing"
    if VALUE_TYPED in table.schema.names and _has_both(table):
        return "a row has a typed value, and the reason why it has none"
    topics = set(table.column("topic").unique().to_pylist())
    if name.topic is None and (len(topics) > 1 or any(topic is None or not is_internal(topic) for topic in topics)):
        return "it holds records of a topic that is not hidden"
    if name.topic is not None and topics - {name.topic}:
        return f"it holds records of a topic other than {name.topic}"
    if set(table.column("partition").unique().to_pylist()) - {name.partition}:
        return f"it holds records of a partition other than {name.partition}"
    return None


def _has_both(table: pa.Table) -> bool:
    compute: Any = pc
    typed, error = (compute.is_valid(table.column(name)) for name in (VALUE_TYPED, VALUE_ERROR))
    return bool(compute.any(compute.and_(typed, error)).as_py())


def rises(times: pa.ChunkedArray) -> bool:
    """Return whether no time is missing or below the one before it."""
    compute: Any = pc
    if times.null_count:
        return False
    return len(times) < 2 or bool(compute.all(compute.less_equal(times[:-1], times[1:])).as_py())

"""Convert a program's Arrow data to rows of the record schema: checked fully, and converted only
without loss.

`pieces_of` takes whatever exports Arrow data through the PyCapsule interface: tables and batches of
pyarrow, data frames of polars and pandas, relations of DuckDB. It needs none of these libraries but
pyarrow. `conform` converts one record batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.errors import InvalidRecord
from ledgermq.protocol.records import HEADERS, SCHEMA, data_bytes_at_most

PIECE_ROWS_MAX = 65_536
PIECE_BYTES_MAX = 16 * 1024 * 1024
"""A producer queues larger data piece by piece, so that it fits into its buffer."""

_GIVEN = ("key", "value", "headers", "timestamp", "tag")
_PARTITION = "partition"
_PANDAS_INDEX = "__index_level_"
"""pandas exports an index without a name as columns that begin so."""


class ArrowStream(Protocol):
    """A table: it exports a stream of Arrow batches."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArray(Protocol):
    """A record batch: it exports one Arrow array with columns."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


ArrowData = ArrowStream | ArrowArray
"""Rows that `send_batch` takes: a pyarrow Table, RecordBatch or RecordBatchReader, a data frame of
polars or pandas, a relation of DuckDB, and whatever else exports Arrow data.
"""


class Piece(NamedTuple):
    """Rows of the record schema. `partitions`: an int32 of each row, null for a row whose key decides;
    None: as for single records.
    """

    rows: pa.RecordBatch
    partitions: pa.Array | None


def pieces_of(given: ArrowData, now_us: int) -> list[Piece]:
    """Return the rows, in their order. Raises InvalidRecord, naming the column."""
    table = table_of(given)
    pieces: list[Piece] = []
    for first in range(0, max(1, table.num_rows), PIECE_ROWS_MAX):
        for batch in table.slice(first, PIECE_ROWS_MAX).combine_chunks().to_batches() or [_empty(table)]:
            pieces += _pieces(batch, now_us)
    return pieces


def table_of(given: ArrowData) -> pa.Table:
    """Read the rows into memory. Raises InvalidRecord, and errors of a query that runs only now."""
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    try:
        if hasattr(given, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(given).read_all()
        if hasattr(given, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(given)])
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidRecord(f"the {type(given).__name__} cannot be read as Arrow rows with columns: {error}") from error
    raise InvalidRecord(
        "expected Arrow data: a pyarrow Table or RecordBatch, a data frame of polars or pandas, a DuckDB relation, or"
        f" another object with __arrow_c_stream__ or __arrow_c_array__; not {type(given).__name__}"
    )


def _empty(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in table.schema], schema=table.schema)


def _pieces(batch: pa.RecordBatch, now_us: int) -> Iterator[Piece]:
    names = batch.schema.names
    if any(name.startswith(_PANDAS_INDEX) for name in names) and b"pandas" in (batch.schema.metadata or {}):
        batch = batch.select([name for name in names if not name.startswith(_PANDAS_INDEX)])
    partitions = None
    if batch.schema.names.count(_PARTITION) == 1:
        partitions = _partitions(batch.column(_PARTITION))
        batch = batch.drop_columns([_PARTITION])
    at = 0
    for rows in split(conform(batch, now_us), PIECE_BYTES_MAX):
        yield Piece(rows, None if partitions is None else partitions.slice(at, rows.num_rows))
        at += rows.num_rows


def _partitions(given: pa.Array) -> pa.Array | None:
    try:
        numbers = given.cast(pa.int32())
    except pa.ArrowException as error:
        raise InvalidRecord(f"the column partition must have whole numbers, or null: {error}") from error
    return None if numbers.null_count == len(numbers) else numbers


def conform(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    """Return the rows. Raises InvalidRecord, naming the column.

    A missing column is null, a missing timestamp is `now_us`.
    """
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidRecord(f"expected a pyarrow.RecordBatch, not {type(batch).__name__}")
    _check_names(batch.schema.names)
    if batch.num_rows == 0:
        raise InvalidRecord("the data has no rows; send data that has at least one")
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidRecord(f"the data is not valid Arrow data: {error}") from error
    columns = {name: _column(batch, name) for name in _GIVEN}
    if columns["timestamp"].null_count:
        columns["timestamp"] = pc.fill_null(
            columns["timestamp"], pa.scalar(now_us, pa.int64()).cast(columns["timestamp"].type)
        )
    columns["timestampType"] = pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _check_names(names: list[str]) -> None:
    wrong = [name for name in dict.fromkeys(names) if name not in (*SCHEMA.names, _PARTITION)]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if not wrong and not twice and "value" in names and _PARTITION not in names:
        return
    if wrong:
        reason = f"drop or rename {', '.join(map(repr, wrong))}"
    elif twice:
        reason = f"{', '.join(map(repr, twice))} is there more than once"
    elif "value" not in names:
        reason = "'value' is missing"
    else:
        reason = "the column 'partition' does not belong here"
    raise InvalidRecord(
        f"columns must be value, and optionally key, headers, tag, timestamp, partition; got {', '.join(names)}:"
        f" {reason}"
    )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    wanted = SCHEMA.field(name).type
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, wanted)
    given = batch.column(name)
    if given.type == wanted:
        return given
    if name == "timestamp" and pa.types.is_timestamp(given.type) and given.type.tz is None:
        raise InvalidRecord("the column timestamp has no time zone; cast it to a type with one")
    if name == "headers" and not pa.types.is_null(given.type) and not _are_headers(given.type):
        raise InvalidRecord(
            f"the column headers has type {given.type}; it must be a map, or a list of structs with the fields key and"
            " value, like [{'key': 'region', 'value': b'eu'}]"
        )
    try:
        return _plain(given).cast(wanted)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidRecord(
            f"the column {name} has type {given.type}, which cannot be converted to {wanted} without loss: {error}"
        ) from error


def _plain(given: pa.Array) -> pa.Array:
    """Return categories as the texts that they stand for."""
    if not pa.types.is_dictionary(given.type):
        return given
    texts = given.dictionary
    if pa.types.is_string_view(texts.type):  # Arrow cannot take elements of views
        texts = texts.cast(pa.string())
    return texts.take(given.indices)


def _are_headers(given: pa.DataType) -> bool:
    if pa.types.is_map(given):
        return True
    is_list = pa.types.is_list(given) or pa.types.is_large_list(given)
    pair = given.value_type if is_list else given
    return (
        is_list and pa.types.is_struct(pair) and {field.name for field in pair} == {f.name for f in HEADERS.value_type}
    )


def split(rows: pa.RecordBatch, bytes_max: int) -> list[pa.RecordBatch]:
    """Split rows of the record schema into pieces of at most `bytes_max`, or of one row.

    As for single records, `bytes_max` counts their data; the overhead may take as much again.
    """
    size = rows.nbytes
    if size <= bytes_max or rows.num_rows == 1 or (size <= 2 * bytes_max and data_bytes_at_most(rows) <= bytes_max):
        return [rows]
    half = rows.num_rows // 2
    return split(rows.slice(0, half), bytes_max) + split(rows.slice(half), bytes_max)

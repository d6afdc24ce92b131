"""Convert a program's Arrow data to rows of the record schema: checked fully, and converted only
without loss.

`pieces_of` takes whatever exports Arrow data through the PyCapsule interface: tables and batches of
pyarrow, data frames of polars and pandas, relations of DuckDB. It needs none of these libraries but
pyarrow. `conform` converts one record batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.client.producing.arrow.columns import column_of, plain_bytes
from ledgermq.errors import InvalidRecord, MessageTooLarge
from ledgermq.protocol.batches.record_rules import PRODUCERS_TYPE, check_records
from ledgermq.protocol.batches.records import SCHEMA, data_bytes_at_most
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX

PIECE_ROWS_MAX = 65_536
PIECE_BYTES_MAX = 16 * 1024 * 1024
"""A producer queues larger data piece by piece, so that it fits into its buffer."""
PART_BYTES_MAX = 4 * PIECE_BYTES_MAX
"""Rows are converted in parts that become at most so large; a record is never as large."""
KEPT_BYTES_MAX = 4 * PIECE_BYTES_MAX
BATCH_BYTES_MAX = 2**31 - 2**20
"""A column of the record schema holds 2 GiB."""

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


class Pieces:
    """The rows of Arrow data, piece by piece, in their order; they may be iterated again.

    Small data is converted once. Of more than `KEPT_BYTES_MAX`, one part at a time is converted,
    again for each iteration, so that a send needs no second copy of all.
    """

    def __init__(self, table: pa.Table, now_us: int) -> None:
        """Raises InvalidRecord if its columns are wrong, or if it has no rows."""
        names = table.schema.names
        if any(name.startswith(_PANDAS_INDEX) for name in names) and b"pandas" in (table.schema.metadata or {}):
            table = table.select([name for name in names if not name.startswith(_PANDAS_INDEX)])
        has_column = table.schema.names.count(_PARTITION) == 1
        self._given = table.drop_columns([_PARTITION]) if has_column else table
        self._numbers = table.column(_PARTITION) if has_column else None
        self.has_partitions = self._numbers is not None and self._numbers.null_count < table.num_rows
        self._now_us = now_us
        self._kept: list[Piece] | None = None
        _check_names(self._given.schema.names)
        if not table.num_rows:
            raise InvalidRecord("the data has no rows; send data that has at least one")
        for field in self._given.schema:
            if field.name in _GIVEN:
                column_of(pa.nulls(0, field.type), field.name)

    def check(self, check: Callable[[Piece], object]) -> None:
        """Convert and check all rows; `check` gets each piece, unless there is only one.

        Raises InvalidRecord, MessageTooLarge, and what `check` raises.
        """
        pieces = self._converted()
        first = next(pieces)
        kept, held = [first], first.rows.nbytes
        for number, piece in enumerate(pieces):
            if number == 0:
                check(first)
            check(piece)
            held += piece.rows.nbytes
            kept = [*kept, piece] if held <= KEPT_BYTES_MAX else []
        self._kept = kept or None

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._kept) if self._kept is not None else self._converted()

    def _converted(self) -> Iterator[Piece]:
        at = 0
        for part in _parts(self._given):
            for batch in _joined(part):
                for rows in split(_made(batch, self._now_us, at), PIECE_BYTES_MAX):
                    yield Piece(rows, self._partitions(at, rows.num_rows))
                    at += rows.num_rows

    def _partitions(self, at: int, count: int) -> pa.Array | None:
        if self._numbers is None:
            return None
        try:
            numbers = self._numbers.slice(at, count).combine_chunks().cast(pa.int32())
        except pa.ArrowException as error:
            raise InvalidRecord(f"the column partition must have whole numbers, or null: {error}") from error
        return None if numbers.null_count == len(numbers) else numbers


def pieces_of(given: ArrowData, now_us: int, check: Callable[[Piece], object] = lambda piece: None) -> Pieces:
    """Return the rows, checked as `Pieces.check` does. Raises InvalidRecord, naming the column, MessageTooLarge."""
    pieces = Pieces(table_of(given), now_us)
    pieces.check(check)
    return pieces


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    """Yield rows that become at most `PART_BYTES_MAX`, so that no column overflows. Raises MessageTooLarge."""
    for first in range(0, table.num_rows, PIECE_ROWS_MAX):
        part = table.slice(first, PIECE_ROWS_MAX)
        try:
            part.validate(full=True)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidRecord(f"the data is not valid Arrow data: {error}") from error
        yield from _halves(part, first)


def _halves(part: pa.Table, first: int) -> Iterator[pa.Table]:
    size = sum(plain_bytes(chunk) for column in part.columns for chunk in column.chunks)
    if size <= PART_BYTES_MAX:
        yield part
        return
    if part.num_rows == 1:
        raise MessageTooLarge(f"row {first} has {size} bytes; a request holds at most {FRAME_PAYLOAD_BYTES_MAX}")
    half = part.num_rows // 2
    yield from _halves(part.slice(0, half), first)
    yield from _halves(part.slice(half), first + half)


def _joined(part: pa.Table) -> list[pa.RecordBatch]:
    """Return the rows in few batches, because tiny ones are slow to convert."""
    try:
        part = part.combine_chunks()
    except pa.ArrowException:  # dictionaries that Arrow cannot unify
        pass
    return list(part.to_batches())


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
    if (size := sum(map(plain_bytes, batch.columns))) > BATCH_BYTES_MAX:
        raise MessageTooLarge(f"the batch has {size} bytes; split it, at most {BATCH_BYTES_MAX} are converted at once")
    return _made(batch, now_us)


def _made(batch: pa.RecordBatch, now_us: int, first_row: int = 0) -> pa.RecordBatch:
    """Return the rows of valid data that fits."""
    columns = {
        name: column_of(batch.column(name), name)
        if name in batch.schema.names
        else pa.nulls(batch.num_rows, SCHEMA.field(name).type)
        for name in _GIVEN
    }
    if columns["timestamp"].null_count:
        columns["timestamp"] = pc.fill_null(
            columns["timestamp"], pa.scalar(now_us, pa.int64()).cast(columns["timestamp"].type)
        )
    columns["timestampType"] = pa.repeat(pa.scalar(PRODUCERS_TYPE, pa.int32()), batch.num_rows)
    rows = pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    check_records(rows, first_row)
    return rows


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


def split(rows: pa.RecordBatch, bytes_max: int) -> list[pa.RecordBatch]:
    """Split rows of the record schema into pieces of at most `bytes_max`, or of one row.

    As for single records, `bytes_max` counts their data; the overhead may take as much again.
    """
    size = rows.nbytes
    if size <= bytes_max or rows.num_rows == 1 or (size <= 2 * bytes_max and data_bytes_at_most(rows) <= bytes_max):
        return [rows]
    half = rows.num_rows // 2
    return split(rows.slice(0, half), bytes_max) + split(rows.slice(half), bytes_max)


def by_tag(rows: pa.RecordBatch, tags_max: int) -> list[pa.RecordBatch]:
    """Return the rows of each tag, in their order; all together if they have more tags."""
    codes = rows.column("tag").dictionary_encode(null_encoding="encode")
    if not 1 < len(codes.dictionary) <= tags_max:
        return [rows]
    return [rows.filter(pc.equal(codes.indices, code)) for code in range(len(codes.dictionary))]

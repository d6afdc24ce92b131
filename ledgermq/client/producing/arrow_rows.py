"""Convert a program's Arrow batch to rows of the record schema: checked fully, and converted only
without loss.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.errors import InvalidRecord
from ledgermq.protocol.records import HEADERS, SCHEMA

_GIVEN = ("key", "value", "headers", "timestamp", "tag")


def conform(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    """Return the rows. Raises InvalidRecord, naming the column.

    A missing column is null, a missing timestamp is `now_us`.
    """
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidRecord(f"expected a pyarrow.RecordBatch, not {type(batch).__name__}")
    if batch.num_rows == 0:
        raise InvalidRecord("a record batch must have at least one row")
    unknown = set(batch.schema.names) - set(SCHEMA.names)
    if unknown or "value" not in batch.schema.names or len(set(batch.schema.names)) != len(batch.schema.names):
        raise InvalidRecord(
            f"columns must be value and optionally key, headers, timestamp, tag; got {', '.join(batch.schema.names)}"
        )
    try:
        batch.validate(full=True)
        columns = {name: _column(batch, name) for name in _GIVEN}
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidRecord(f"the record batch does not fit the record schema: {error}") from error
    if columns["timestamp"].null_count:
        columns["timestamp"] = pc.fill_null(
            columns["timestamp"], pa.scalar(now_us, pa.int64()).cast(columns["timestamp"].type)
        )
    columns["timestampType"] = pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    wanted = SCHEMA.field(name).type
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, wanted)
    given = batch.column(name)
    if name == "timestamp" and pa.types.is_timestamp(given.type) and given.type.tz is None:
        raise InvalidRecord("the column timestamp has no time zone; cast it to a type with one")
    if name == "headers" and given.type != HEADERS and not pa.types.is_map(given.type):
        raise InvalidRecord(f"the column headers has type {given.type}; it must be {HEADERS}")
    return given if given.type == wanted else given.cast(wanted)

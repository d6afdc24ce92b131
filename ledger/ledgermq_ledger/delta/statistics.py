"""The statistics of a file that a Delta table names: readers pass over files by them, so a bound may
be too wide, never too narrow. Pure.

Times are cut to milliseconds in Delta: a maximum is rounded up. A bound that JSON cannot say is left
out: times outside of the years 1 to 9999, numbers that are no number or infinite. Bytes have no
bounds in Delta. A column without known bounds is left out.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TIME = pa.timestamp("us", tz="UTC")
STRING_CHARS_MAX = 249
"""The longest name of a topic. Longer bounds of strings are left out."""
Value = int | float | str | dt.datetime


@dataclass(frozen=True, slots=True)
class Statistics:
    """`rows`: number of rows. By column: the bounds, and how many rows are NULL."""

    rows: int
    least: dict[str, Value] = field(default_factory=dict)
    most: dict[str, Value] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)


def encode_statistics(found: Statistics) -> str:
    """Return the text for `Add.stats`."""
    least = {name: text for name, value in found.least.items() if (text := _bound(value, up=False)) is not None}
    most = {name: text for name, value in found.most.items() if (text := _bound(value, up=True)) is not None}
    encoded = {"numRecords": found.rows, "minValues": least, "maxValues": most, "nullCount": found.nulls}
    return msgspec.json.encode(encoded).decode()


def rows_of(stats: str | None) -> int:
    """Return how many rows the text of `Add.stats` says; 0 if it says nothing."""
    try:
        found = msgspec.json.decode(stats or "{}").get("numRecords", 0)
    except (msgspec.DecodeError, AttributeError, RecursionError):
        return 0
    return found if isinstance(found, int) else 0


def time_of_us(us: int) -> dt.datetime | None:
    """Return a time in microseconds since 1970; None outside of the years 1 to 9999."""
    try:
        return EPOCH + dt.timedelta(microseconds=us)
    except OverflowError:
        return None


def _bound(value: Value, *, up: bool) -> int | float | str | None:
    match value:
        case dt.datetime():
            return _time(value, up=up)
        case float():
            return value if math.isfinite(value) else None
        case str():
            return value if len(value) <= STRING_CHARS_MAX and _is_unicode(value) else None
        case int():
            return value


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _time(value: dt.datetime, *, up: bool) -> str | None:
    try:
        if up and value.microsecond % 1000:
            value += dt.timedelta(microseconds=1000 - value.microsecond % 1000)
    except OverflowError:
        return None
    text = value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
    return f"{text}Z"


def statistics_of_footer(footer: pq.FileMetaData) -> Statistics:
    """Return what the footer of a Parquet file says. Nested columns are left out."""
    found, unbounded, uncounted = Statistics(footer.num_rows), set[str](), set[str]()
    schema = footer.schema.to_arrow_schema()
    for group in (footer.row_group(number) for number in range(footer.num_row_groups)):
        for column in (group.column(number) for number in range(group.num_columns)):
            name, known = column.path_in_schema, column.statistics
            if schema.get_field_index(name) < 0:
                continue
            if known is None or not known.has_null_count:
                uncounted.add(name)
            else:
                found.nulls[name] = found.nulls.get(name, 0) + known.null_count
            bounds = None if known is None else _bounds(schema.field(name).type, known)
            if bounds is not None:
                found.least[name] = min(found.least.get(name, bounds[0]), bounds[0])
                found.most[name] = max(found.most.get(name, bounds[1]), bounds[1])
            elif known is None or not known.has_null_count or known.null_count < group.num_rows:
                unbounded.add(name)  # what one group of rows does not say, the file does not, either
    for name in unbounded:
        found.least.pop(name, None)
        found.most.pop(name, None)
    for name in uncounted:
        found.nulls.pop(name, None)
    return found


def _bounds(kind: pa.DataType, known: pq.Statistics) -> tuple[Value, Value] | None:
    if not known.has_min_max:
        return None
    if kind == TIME:
        least, most = time_of_us(known.min_raw), time_of_us(known.max_raw)
        return None if least is None or most is None else (least, most)
    if pa.types.is_integer(kind) or pa.types.is_string(kind):
        return known.min, known.max
    return None

"""What every record must satisfy, whichever way it comes: by `send`, as Arrow data, from Spark, or
as bytes at a broker.

    headers        each has a name, which is text; its value may be null
    timestamp      within the years 1 to 9999
    timestampType  0 or null: only brokers claim that a timestamp is theirs
    tag, names     valid UTF-8; Arrow's full validation holds this for columns

Each rule is here twice: for one record as a program gives it, and for the columns of a batch.
What a topic adds (its largest record, keys of keyed topics, bounds of timestamps) is checked by the
brokers in `ledgermq_broker.paths.received_batches`.

Invariant: readers do not rely on these rules, because roots hold records from before a rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.errors import InvalidRecord
from ledgermq.protocol.batches.records import TIMESTAMP_MAX_US, TIMESTAMP_MIN_US, timestamps_of

PRODUCERS_TYPE = 0
"""`timestampType` of records whose timestamp is their producer's."""
_TYPE_BYTES = 4
TIMESTAMP_AFTER, TIMESTAMP_BEFORE = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
TIMESTAMP_AFTER_MS = 60 * 60 * 1000
"""How far a timestamp may be ahead of its append, in topics that do not set message.timestamp.after.max.ms."""


@dataclass(frozen=True, slots=True)
class TimestampBounds:
    """How far timestamps of a topic may be from the time of their append, in milliseconds; below 0: any."""

    after_ms: int = TIMESTAMP_AFTER_MS
    before_ms: int = -1

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> TimestampBounds:
        """Return the bounds by a topic's settings, as its record holds them. A value that is no number sets none."""
        if settings.get("message.timestamp.type") == "LogAppendTime":
            return cls(-1, -1)
        after = settings.get(TIMESTAMP_AFTER, str(TIMESTAMP_AFTER_MS))
        before = settings.get(TIMESTAMP_BEFORE, "-1")
        return cls(int(after) if after.isdecimal() else -1, int(before) if before.isdecimal() else -1)

    @property
    def is_set(self) -> bool:
        return self.after_ms >= 0 or self.before_ms >= 0

    def hold(self, first_us: int, last_us: int, now_us: int) -> bool:
        """Return whether timestamps from `first_us` to `last_us` may be appended at `now_us`."""
        is_ahead = 0 <= 1000 * self.after_ms < last_us - now_us
        return not is_ahead and not 0 <= 1000 * self.before_ms < now_us - first_us

    def problem(self, first_us: int, last_us: int, now_us: int, clock: str, topic: str) -> str | None:
        """Return what is wrong with timestamps from `first_us` to `last_us` at `now_us`; None: nothing is.
        `clock`: whose time that is.
        """
        if self.hold(first_us, last_us, now_us):
            return None
        if 0 <= 1000 * self.after_ms < last_us - now_us:
            distance, bound, name = f"{(last_us - now_us) // 1_000_000} s ahead of", self.after_ms, TIMESTAMP_AFTER
        else:
            distance, bound, name = f"{(now_us - first_us) // 1_000_000} s behind", self.before_ms, TIMESTAMP_BEFORE
        return f"{distance} {clock}; topic {topic} takes up to {bound / 1000:g} s ({name})"


def check_header_name(name: Any) -> str:
    """Return the name of a header. Raises InvalidRecord."""
    if not isinstance(name, str):
        raise InvalidRecord(f"a header's key must be text, not {type(name).__name__}")
    return name


def check_timestamp(timestamp_us: Any) -> int:
    """Return microseconds since the epoch. Raises InvalidRecord."""
    if isinstance(timestamp_us, bool) or not isinstance(timestamp_us, int):
        raise InvalidRecord(
            f"the timestamp must be a datetime or microseconds since the epoch, not {type(timestamp_us).__name__}"
        )
    if not TIMESTAMP_MIN_US <= timestamp_us <= TIMESTAMP_MAX_US:
        raise InvalidRecord(f"timestamp {timestamp_us} µs is outside of the years 1 to 9999")
    return timestamp_us


def check_records(rows: pa.RecordBatch, first_row: int = 0) -> tuple[int, int] | None:
    """Check the records of a validated batch of the record schema. `first_row`: the number of its first row in errors.

    Return the smallest and largest timestamp in microseconds; None: no record has one. Raises
    InvalidRecord, naming the first wrong row.
    """
    _check_names(rows.column("headers"), first_row)
    _check_types(rows.column("timestampType"), first_row)
    return timestamps_of(rows)


def _check_names(headers: pa.Array, first_row: int) -> None:
    if headers.null_count == len(headers):
        return
    pairs = headers.values
    if not pairs.null_count and not pairs.field("key").null_count:
        return
    names = pc.list_flatten(headers).flatten()[0]  # only what the rows refer to
    if names.null_count:
        row = rows_of_headers(headers).filter(names.is_null())[0].as_py()
        raise InvalidRecord(
            f"row {first_row + row} has a header without a name; its key must be text, its value may be null"
        )


def rows_of_headers(headers: pa.ListArray) -> pa.Array:
    """Return the row of each header, in the order of `pc.list_flatten(headers)`."""
    rows = pc.list_parent_indices(headers)
    lengths = pc.fill_null(pc.list_value_length(headers), 0)
    if len(rows) == (pc.sum(lengths).as_py() or 0):
        return rows
    # Lists that are null may have content behind them, which list_flatten leaves out and list_parent_indices counts.
    return pa.array([row for row, length in enumerate(lengths.to_pylist()) for _ in range(length)], pa.int64())


def _check_types(types: pa.Array, first_row: int) -> None:
    """Compare bytes: Arrow's functions cost more than that for the small batches of a low rate."""
    if types.null_count == len(types):
        return
    values = memoryview(types.buffers()[1])[_TYPE_BYTES * types.offset : _TYPE_BYTES * (types.offset + len(types))]
    if bytes(values).count(0) == len(values):
        return
    wrong = pc.fill_null(pc.not_equal(types, PRODUCERS_TYPE), False)
    if not pc.any(wrong).as_py():
        return
    row = pc.index(wrong, True).as_py()
    raise InvalidRecord(
        f"row {first_row + row} has timestampType {types[row].as_py()}; producers send {PRODUCERS_TYPE}, and the broker"
        " sets 1 in topics with message.timestamp.type=LogAppendTime"
    )

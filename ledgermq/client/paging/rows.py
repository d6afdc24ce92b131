"""Records that may come into a page, as columns: what orders and bounds them, and the table that the chosen ones make.
Only records that a program asks for as messages become objects.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.client.consuming.message import TABLE_SCHEMA, table_of

STEP_RECORDS_MAX = 4096
LIKELY_BYTES = 1024
"""What a record may take, encoded, before that is known."""
SPARE_BYTES = 64 * 1024
"""What is asked for besides, because the last batch is rarely used up."""


class Rows:
    """Records of one partition, by their places from 0 on, in the order of their offsets."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self._batches: list[pa.RecordBatch] = []
        self._times_us: list[int] = []
        self._sizes: list[int] = []

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def times_us(self) -> Sequence[int]:
        """Return the time of each record, 0 for one without. They are listed when they are first asked for."""
        if len(self._times_us) != len(self):
            columns = [rows.column("timestamp").cast(pa.int64()) for rows in self._batches]
            self._times_us = [time_us for column in columns for time_us in pc.fill_null(column, 0).to_pylist()]
        return self._times_us

    @property
    def sizes(self) -> Sequence[int]:
        """Return of each record the bytes of its key, value and headers. They are listed as its times are."""
        if len(self._sizes) != len(self):
            self._sizes = [size for rows in self._batches for size in sizes_of(rows).to_pylist()]
        return self._sizes

    @property
    def data_bytes(self) -> int:
        """Return the sum of `sizes`."""
        return sum(pc.sum(sizes_of(rows)).as_py() or 0 for rows in self._batches)

    def add(self, records: pa.RecordBatch, topic: str, partition: int, offsets: Sequence[int]) -> None:
        """Add decoded records of higher offsets."""
        self.offsets += offsets
        self._batches.append(table_of(_let_go(records), topic, partition, offsets))

    def extend(self, other: Rows) -> None:
        """Add the records of another answer, of higher offsets."""
        self.offsets += other.offsets
        self._batches += other._batches

    def keep(self, offset: int) -> None:
        """Keep those below an offset."""
        kept = bisect_left(self.offsets, offset)
        self._batches = self._between(0, kept)
        del self.offsets[kept:], self._times_us[kept:], self._sizes[kept:]

    def fitting(self, records_max: int, bytes_max: int) -> int:
        """Return how many of the first ones have at most so many bytes: one at least, if there is one."""
        count = min(records_max, len(self))
        if self.data_bytes <= bytes_max:
            return count
        fit = bisect_right(list(accumulate(self.sizes[:count])), bytes_max)
        return max(fit, min(1, count))

    def table(self, first: int, last: int) -> pa.Table:
        """Return the records from one place up to, without, another, with the columns of `TABLE_SCHEMA`."""
        return pa.Table.from_batches(map(_let_go, self._between(first, last)), schema=TABLE_SCHEMA)

    def _between(self, first: int, last: int) -> list[pa.RecordBatch]:
        if first == 0 and last == len(self):
            return self._batches
        table = pa.Table.from_batches(self._batches, schema=TABLE_SCHEMA)
        found: list[pa.RecordBatch] = table.slice(first, last - first).to_batches()
        return found


@dataclass(slots=True)
class Seen:
    """What has come for one page: it says how many bytes to ask for. `records`, `bytes`: of all batches, encoded.
    `judged`: records that the filter has seen, `passed`: those that it lets pass.
    """

    records: int = 0
    bytes: int = 0
    judged: int = 0
    passed: int = 0

    def bytes_of(self, records: int) -> int:
        """Return how many bytes to ask for, so that so many records come."""
        return SPARE_BYTES + records * (self.bytes // self.records if self.records else LIKELY_BYTES)

    def bytes_of_passing(self, records: int) -> int:
        """Return how many bytes to ask for, so that so many records come that the filter lets pass."""
        return self.bytes_of(records * (1 + self.judged) // (1 + self.passed))


@dataclass(slots=True)
class Answer:
    """What a partition's owner answered. `next`: behind the last record that it sent. `places`: in the page, of each
    record that was taken; they are the first ones of `rows`.
    """

    log_start: int
    high_watermark: int
    next: int
    rows: Rows = field(default_factory=Rows)
    places: list[int] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Return how many records are there that were not taken."""
        return len(self.rows) - len(self.places)

    @property
    def runs_out(self) -> bool:
        """Return whether all that was sent is taken, and more is in the log."""
        return not self.left and self.next < self.high_watermark

    @property
    def after(self) -> int:
        """Return where the next page begins."""
        return self.rows.offsets[len(self.places)] if self.left else self.next

    def join(self, more: Answer) -> None:
        """Add what was answered to a question from `next` on."""
        self.log_start, self.high_watermark, self.next = more.log_start, more.high_watermark, more.next
        self.rows.extend(more.rows)


@dataclass(slots=True)
class Down:
    """A partition that is read downwards: what was read below `at`, and not taken yet, are the first `left` of `rows`,
    which begin at `low`. `taken`: tables of what was taken before, newest first. `places`: in the page, of each record
    that was taken, newest first.
    """

    at: int
    low: int
    log_start: int
    step: int
    rows: Rows = field(default_factory=Rows)
    left: int = 0
    taken: list[pa.Table] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    @property
    def runs_out(self) -> bool:
        """Return whether all that was read is taken, and more is in the log."""
        return not self.left and self.low > self.log_start

    def read(self, rows: Rows, low: int) -> None:
        """Go on with records that were read below the ones before, of which all are taken."""
        assert not self.left, "what was read is taken before more is read"
        self.let_go()
        self.rows, self.left, self.low, self.step = rows, len(rows), low, min(2 * self.step, STEP_RECORDS_MAX)

    def let_go(self) -> None:
        """Keep, of what was read, only what was taken."""
        self.taken.append(self.rows.table(self.left, len(self.rows)))


def sizes_of(records: pa.RecordBatch) -> pa.Int64Array:
    """Return of each record the bytes of its key, value and headers."""
    lengths = [pc.fill_null(pc.binary_length(records.column(name)), 0).cast(pa.int64()) for name in ("key", "value")]
    sizes = pc.add(*lengths)
    headers = records.column("headers")
    if headers.null_count == len(headers):
        return sizes
    of_headers = [
        sum(len((pair["key"] or "").encode()) + len(pair["value"] or b"") for pair in pairs or ())
        for pairs in headers.to_pylist()
    ]
    return pc.add(sizes, pa.array(of_headers, pa.int64()))


def merged(parts: Sequence[tuple[pa.Table, Sequence[int]]], count: int) -> pa.Table:
    """Return the records of several partitions in one order: of each part its table, and the place of each of its
    records in the whole, which has `count`.
    """
    table = pa.concat_tables([part for part, _ in parts] or [TABLE_SCHEMA.empty_table()])
    places = [place for _, taken in parts for place in taken]
    if places == list(range(count)):
        return table
    order = [0] * count
    for number, place in enumerate(places):
        order[place] = number
    return table.take(pa.array(order, pa.int64()))


def _let_go(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Copy rows that are a small part of what they were cut from, so that they do not hold all of it in memory."""
    if 2 * rows.nbytes >= rows.get_total_buffer_size():
        return rows
    return rows.take(pa.array(range(rows.num_rows), pa.int64()))

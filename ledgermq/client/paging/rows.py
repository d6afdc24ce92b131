"""Records that may come into a page, as columns: what orders and bounds them, and the table that the chosen ones make.
Only records that a program asks for as messages become objects.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.client.consuming.message import TABLE_SCHEMA, table_of


class Rows:
    """Records of one partition, by their places from 0 on, in the order of their offsets. `times_us`: 0 for one without
    a time. `sizes`: bytes of key, value and headers.
    """

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.times_us: list[int] = []
        self.sizes: list[int] = []
        self._batches: list[pa.RecordBatch] = []

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, records: pa.RecordBatch, topic: str, partition: int, offsets: Sequence[int]) -> None:
        """Add decoded records of higher offsets."""
        self.offsets += offsets
        self.times_us += pc.fill_null(records.column("timestamp").cast(pa.int64()), 0).to_pylist()
        self.sizes += sizes_of(records)
        self._batches.append(table_of(_let_go(records), topic, partition, offsets))

    def extend(self, other: Rows) -> None:
        """Add the records of another answer, of higher offsets."""
        self.offsets += other.offsets
        self.times_us += other.times_us
        self.sizes += other.sizes
        self._batches += other._batches

    def keep(self, offset: int) -> None:
        """Keep those below an offset."""
        kept = bisect_left(self.offsets, offset)
        del self.offsets[kept:], self.times_us[kept:], self.sizes[kept:]
        self._batches = self._between(0, kept)

    def fitting(self, records_max: int, bytes_max: int) -> int:
        """Return how many of the first ones have at most so many bytes: one at least, if there is one."""
        fit = bisect_right(list(accumulate(self.sizes[:records_max])), bytes_max)
        return max(fit, min(1, len(self)))

    def table(self, first: int, last: int) -> pa.Table:
        """Return the records from one place up to, without, another, with the columns of `TABLE_SCHEMA`."""
        return pa.Table.from_batches(map(_let_go, self._between(first, last)), schema=TABLE_SCHEMA)

    def _between(self, first: int, last: int) -> list[pa.RecordBatch]:
        table = pa.Table.from_batches(self._batches, schema=TABLE_SCHEMA)
        found: list[pa.RecordBatch] = table.slice(first, last - first).to_batches()
        return found


def sizes_of(records: pa.RecordBatch) -> list[int]:
    """Return of each record the bytes of its key, value and headers."""
    lengths = [pc.fill_null(pc.binary_length(records.column(name)), 0).cast(pa.int64()) for name in ("key", "value")]
    sizes: list[int] = pc.add(*lengths).to_pylist()
    headers = records.column("headers")
    if headers.null_count < len(headers):
        for number, pairs in enumerate(headers.to_pylist()):
            for pair in pairs or ():
                sizes[number] += len((pair["key"] or "").encode()) + len(pair["value"] or b"")
    return sizes


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

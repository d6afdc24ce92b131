"""The records of a batch that is still open, by column.

Lists of bytes and numbers are what Python keeps at the lowest price: an object for each record would be
looked at by the garbage collector again and again while a million records wait, which costs more than
all else that a producer does with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Self

import pyarrow as pa

from ledgermq.client.messages.record import Row
from ledgermq.protocol.batches.record_rules import PRODUCERS_TYPE
from ledgermq.protocol.batches.records import FEW_ROWS_MAX, HEADERS, SCHEMA


class RecordColumns:
    """`values` and `timestamps_us` have an entry for each record. The other columns may be shorter: the records
    behind their end have nothing there. So a record that has only a value costs two entries.
    """

    __slots__ = (
        "_header_ends",
        "_header_names",
        "_header_rows",
        "_header_values",
        "_keys",
        "_tags",
        "timestamps_us",
        "values",
    )

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.timestamps_us: list[int] = []
        self._keys: list[bytes | None] = []
        self._tags: list[str | None] = []
        self._header_rows: list[int] = []
        """The records that have headers."""
        self._header_ends: list[int] = []
        """By such a record: how many headers there are up to it."""
        self._header_names: list[str] = []
        self._header_values: list[bytes | None] = []

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Self:
        made = cls()
        for row in rows:
            made.add(*row)
        return made

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] | None,
        timestamp_us: int,
        tag: str | None,
    ) -> None:
        """Add a record that `row_of` has checked."""
        row = len(self.values)
        self.values.append(value)
        self.timestamps_us.append(timestamp_us)
        if key is not None:
            keys = self._keys
            if len(keys) < row:
                keys += repeat(None, row - len(keys))
            keys.append(key)
        if headers:
            for name, data in headers:
                self._header_names.append(name)
                self._header_values.append(data)
            self._header_rows.append(row)
            self._header_ends.append(len(self._header_names))
        if tag is not None:
            tags = self._tags
            if len(tags) < row:
                tags += repeat(None, row - len(tags))
            tags.append(tag)

    def headers_with(self, name: str) -> Iterator[Sequence[tuple[str, bytes | None]]]:
        """Yield the headers of each record that has a header of this name."""
        start = 0
        for end in self._header_ends if name in self._header_names else ():
            if name in (names := self._header_names[start:end]):
                yield list(zip(names, self._header_values[start:end], strict=True))
            start = end

    def to_arrow(self) -> pa.RecordBatch:
        """Return a record batch of the record schema. At least one record."""
        count = len(self.values)
        nulls = _few_nulls if count <= FEW_ROWS_MAX else _nulls
        columns = [
            _array(self._keys, count, pa.binary()) if self._keys else nulls("key", count),
            pa.array(self.values, pa.binary()),
            self._headers(count) if self._header_rows else nulls("headers", count),
            pa.array(self.timestamps_us, pa.int64()).view(SCHEMA.field("timestamp").type),
            _few_types(count) if count <= FEW_ROWS_MAX else _types(count),
            _array(self._tags, count, pa.string()) if self._tags else nulls("tag", count),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _headers(self, count: int) -> pa.ListArray:
        names, values = pa.array(self._header_names, pa.string()), pa.array(self._header_values, pa.binary())
        pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
        if len(self._header_rows) == count:
            return pa.ListArray.from_arrays(pa.array([0, *self._header_ends], pa.int32()), pairs, type=HEADERS)
        offsets, is_null, end = [0], [True] * count, 0
        for row, row_end in zip(self._header_rows, self._header_ends, strict=True):
            offsets += repeat(end, row + 1 - len(offsets))
            offsets.append(row_end)
            is_null[row], end = False, row_end
        offsets += repeat(end, count + 1 - len(offsets))
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), pairs, type=HEADERS, mask=pa.array(is_null, pa.bool_())
        )


def rows_to_arrow(rows: Iterable[Row]) -> pa.RecordBatch:
    """Return the rows as a record batch. At least one row; all come from `row_of`, so none of them
    can fail here.
    """
    return RecordColumns.of(rows).to_arrow()


def _array(column: Sequence[bytes | str | None], count: int, kind: pa.DataType) -> pa.Array:
    missing = count - len(column)
    return pa.array([*column, *repeat(None, missing)] if missing else column, kind)


def _nulls(column: str, count: int) -> pa.Array:
    return pa.nulls(count, SCHEMA.field(column).type)


def _types(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(PRODUCERS_TYPE, pa.int32()), count)


_few_nulls = lru_cache(3 * FEW_ROWS_MAX)(_nulls)
_few_types = lru_cache(FEW_ROWS_MAX)(_types)
"""Made once: it saves a third of the time of a record that is alone in its batch, which is the
case at a low rate.
"""

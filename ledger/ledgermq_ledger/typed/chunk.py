"""Decode many values of one schema at once. It runs in a child process (`child`): values are untrusted, and decoders of
columns are native code.

A decoder of columns takes all values or none. Where it fails the chunk is halved, and the rest goes row by row: that
decides what is wrong with a value, and says it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ledgermq_ledger.typed.rows import avro, json_rows, protobuf
from ledgermq_ledger.typed.rows.bounds import TEXT_CHARS_MAX, ReadRow
from ledgermq_ledger.typed.shape import VALUE_ERROR, VALUE_TYPED, Node

Columns = Callable[[pa.Array], pa.Array]
"""Returns the struct of each value, of the wanted type. Raises anything if a value is bad, or if it is not sure."""
ROWS: dict[str, Callable[[str, Node], ReadRow]] = {
    "avro": avro.reader_of,
    "json": json_rows.reader_of,
    "protobuf": protobuf.reader_of,
}
AT_ONCE_MIN = 64
"""Values below which a chunk goes row by row at once."""
FAILURES_MAX = 32
"""Failures of a decoder of columns in one request, after which it is no longer asked: the values are bad ones."""


@dataclass(frozen=True, slots=True)
class Work:
    """What values are decoded by. `root`: the fields that they have; `wanted`: the struct that a file gets."""

    kind: str
    text: str
    root: Node
    wanted: pa.DataType

    @property
    def answer(self) -> pa.Schema:
        return pa.schema([pa.field(VALUE_TYPED, self.wanted), pa.field(VALUE_ERROR, pa.string())])


class ChunkDecoder:
    def __init__(self, work: Work, columns: Columns | None = None) -> None:
        self._work, self._columns = work, columns
        self._row = ROWS[work.kind](work.text, work.root)
        self._failures = 0

    def decode(self, values: pa.Array) -> pa.RecordBatch:
        """Return a struct, and NULL or an error, for each value; none of them is NULL."""
        self._failures = 0
        parts: list[tuple[pa.Array, pa.Array]] = []
        self._into(values, parts)
        arrays = [pa.concat_arrays([part[at] for part in parts]) for at in range(2)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._work.answer)

    def _into(self, values: pa.Array, parts: list[tuple[pa.Array, pa.Array]]) -> None:
        if self._columns is not None and len(values) >= AT_ONCE_MIN and self._failures < FAILURES_MAX:
            found = self._by_columns(self._columns, values)
            if found is not None:
                parts.append((found, pa.nulls(len(values), pa.string())))
                return
            self._failures += 1
            half = len(values) // 2
            self._into(values[:half], parts)
            self._into(values[half:], parts)
            return
        parts.append(self._by_rows(values))

    def _by_columns(self, columns: Columns, values: pa.Array) -> pa.Array | None:
        try:
            found = columns(values)
            found.validate(full=True)
        except MemoryError:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of a library in Rust
                raise
            return None
        return found if len(found) == len(values) and found.type == self._work.wanted else None

    def _by_rows(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        rows: list[dict[str, Any] | None] = []
        errors: list[str | None] = []
        for data in values.to_pylist():
            row, error = self._one(data)
            rows.append(row)
            errors.append(error)
        return self._array(rows, errors), pa.array(errors, pa.string())

    def _one(self, data: bytes) -> tuple[dict[str, Any] | None, str | None]:
        try:
            return self._row(data), None
        except RecursionError:
            return None, "it is nested too deeply"
        except (ValueError, OverflowError, ArithmeticError) as error:
            return None, shortened(str(error) or type(error).__name__)

    def _array(self, rows: Sequence[dict[str, Any] | None], errors: list[str | None]) -> pa.Array:
        try:
            return pa.array(rows, self._work.wanted)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            pass
        found = []
        for at, row in enumerate(rows):
            try:
                found.append(pa.array([row], self._work.wanted))
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                found.append(pa.nulls(1, self._work.wanted))
                errors[at] = shortened(f"no column can hold it: {error}")
        return pa.concat_arrays(found)


def shortened(text: str) -> str:
    """Return an error as a column holds it: one line of printable text."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain[:TEXT_CHARS_MAX]

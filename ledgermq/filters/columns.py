"""The tags and headers of a batch, as columns of values that conditions can compare.

A column holds each distinct value once, so that a condition is judged once for each of them, in plain
Python, however many rows there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.protocol.batches.record_rules import rows_of_headers
from ledgermq.protocol.batches.records import FEW_ROWS_MAX

TAGS = "TAGS"
"""The name under which an SQL filter reads a message's tag; RocketMQ's. Written in double quotes it is a header."""
VALUE_BYTES_MAX = 64 * 1024
"""A longer value of a header is neither text nor a number, so that no condition takes long."""
NUMBER_CHARS_MAX = 64
"""A longer text is not a number."""
NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?"
"""Texts that read as a number: decimal, without spaces, infinity and digits of other scripts."""

_NUMBER = re.compile(NUMBER)


def number_of(text: str) -> int | Decimal | None:
    """Return the number that a text reads as, exactly; None: it is not a number."""
    if len(text) > NUMBER_CHARS_MAX or _NUMBER.fullmatch(text) is None:
        return None
    return int(text) if text.lstrip("+-").isdigit() else Decimal(text)


def _text(raw: bytes | str) -> str | None:
    """Return the text of a header, or of a tag; None: it is not text, or too long."""
    if len(raw) > VALUE_BYTES_MAX:
        return None
    try:
        return raw if isinstance(raw, str) else raw.decode()
    except UnicodeDecodeError:
        return None


class Column:
    """The values of one header, or of the tag, in the order of the rows. A row has none if it lacks the header,
    or if the header has no value. `values`: binary or string, one for each row.

    A value of a header that is not text (`_text`) makes every comparison unknown. `otherwise`: what is said of
    texts that are not of the kind.
    """

    def __init__(self, values: pa.Array) -> None:
        encoded = values.dictionary_encode()
        self._codes = encoded.indices
        self._texts = [_text(raw) for raw in encoded.dictionary.to_pylist()]

    @cached_property
    def _numbers(self) -> list[int | Decimal | None]:
        return [None if text is None else number_of(text) for text in self._texts]

    def is_null(self) -> pa.BooleanArray:
        """Return for each row whether it has no value."""
        return self._codes.is_null()

    def judge_texts(self, test: Callable[[str], bool]) -> pa.BooleanArray:
        """Return for each row what `test` says of its text."""
        return self._spread([None if text is None else test(text) for text in self._texts])

    def judge_all_texts(self, test: Callable[[pa.StringArray], pa.BooleanArray]) -> pa.BooleanArray:
        """Return for each row what `test` says of its text. It gets the distinct texts; null: not text."""
        return test(pa.array(self._texts, pa.string())).take(self._codes)

    def judge_numbers(self, test: Callable[[int | Decimal], bool], otherwise: bool | None) -> pa.BooleanArray:
        """Return for each row what `test` says of the number that its text reads as."""
        return self._judge_kind(self._numbers, test, otherwise)

    def judge_booleans(self, test: Callable[[bool], bool], otherwise: bool | None) -> pa.BooleanArray:
        """Return for each row what `test` says of its text that reads as true or false, in any case."""
        read = {"true": True, "false": False}
        return self._judge_kind(
            [None if text is None else read.get(text.lower()) for text in self._texts], test, otherwise
        )

    def _judge_kind(self, values: list[Any], test: Callable[[Any], bool], otherwise: bool | None) -> pa.BooleanArray:
        return self._spread(
            [
                test(value) if value is not None else None if text is None else otherwise
                for value, text in zip(values, self._texts, strict=True)
            ]
        )

    def rows(self) -> list[tuple[str | None, int | Decimal | None]]:
        """Return the text of each row, and the number that it reads as."""
        numbers = self._numbers
        return [(None, None) if at is None else (self._texts[at], numbers[at]) for at in self._codes.to_pylist()]

    def _spread(self, outcomes: list[bool | None]) -> pa.BooleanArray:
        return pa.array(outcomes, pa.bool_()).take(self._codes)


class Columns:
    """The columns of a validated batch that has the columns `tag` and `headers` of the record schema, or those of
    them that its filter needs.
    """

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows
        self._known: dict[tuple[str, bool], Column] = {}

    def of(self, name: str, *, is_header: bool) -> Column:
        """Return a header, or the tag. Of several headers of one name in a message, the last counts."""
        key = (name, is_header)
        if key not in self._known:
            self._known[key] = Column(self._header(name) if is_header else self._rows.column("tag"))
        return self._known[key]

    @cached_property
    def _pairs(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """All headers of the batch: their rows, names and values."""
        headers = self._rows.column("headers")
        names, values = pc.list_flatten(headers).flatten()
        return rows_of_headers(headers), names, values

    def _header(self, name: str) -> pa.Array:
        count = self._rows.num_rows
        headers = self._rows.column("headers")
        if headers.null_count == len(headers):
            return pa.nulls(count, pa.binary())
        if count <= FEW_ROWS_MAX:
            last = [dict(each) for each in map(_pairs_of, headers.to_pylist())]
            return pa.array([each.get(name) for each in last], pa.binary())
        all_rows, names, all_values = self._pairs
        chosen = pc.fill_null(pc.equal(names, name), False)
        rows, values = all_rows.filter(chosen), all_values.filter(chosen)
        distinct = pc.count_distinct(rows).as_py()
        if distinct == len(rows) == count:
            return values
        if distinct < len(rows):
            last = pa.array(list({row: at for at, row in enumerate(rows.to_pylist())}.values()), pa.int64())
            rows, values = rows.take(last), values.take(last)
        return values.take(pc.index_in(pa.arange(0, count), value_set=rows.cast(pa.int64())))


def _pairs_of(headers: list[dict[str, Any] | None] | None) -> list[tuple[str, bytes | None]]:
    return [(pair["key"], pair["value"]) for pair in headers or () if pair is not None]

"""A filter, as programs write it: tags, or a condition of SQL over headers.

    "TagA || TagB"                            messages with one of these tags: words with || between them
    "region IN ('eu', 'us') AND price > 5"    a condition (`ledgermq.filters.grammar`)
    "FUNCTION('vip') AND price > 5"           what a function of the broker keeps, and a condition if there is one
    "*", ""                                   all messages

A text that consists of words alone is one of tags. The text of a filter (`Filter.text`) is the same for
filters that differ only in blanks, letters of key words, and the order of tags and constants.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.errors import InvalidFilter
from ledgermq.filters.columns import Columns
from ledgermq.filters.conditions import Condition, as_part, written

CHARS_MAX = 4096
"""Longest text of a filter."""
ALL = "*"

_TAG = re.compile(r"""[^\s|'"()=<>!,*]+""")


class Filter(Protocol):
    @property
    def text(self) -> str: ...

    @property
    def tags(self) -> frozenset[str] | None:
        """The tags that alone can pass; None: others can, too."""
        ...

    @property
    def function(self) -> str:
        """The function of the broker that has to keep a message, too; empty: none."""
        ...

    @property
    def columns(self) -> frozenset[str]:
        """The columns of the record schema that it reads."""
        ...

    def passes(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether it passes, without nulls and whatever the function says. `rows`: a validated
        batch with these columns.
        """
        ...


class _TagFilter:
    columns = frozenset({"tag"})
    function = ""

    def __init__(self, tags: frozenset[str]) -> None:
        self.tags: frozenset[str] | None = tags
        self.text = " || ".join(sorted(tags))
        self._set = pa.array(sorted(tags), pa.string())

    def passes(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        return pc.is_in(rows.column("tag"), value_set=self._set)


class _SqlFilter:
    tags: frozenset[str] | None = None

    def __init__(self, condition: Condition | None, function: str = "") -> None:
        conditions = () if condition is None else (condition,)
        call = () if not function else (f"FUNCTION({written(function)})",)
        self.text = " AND ".join([*call, *(as_part(each) if call else str(each) for each in conditions)])
        self.function = function
        self.columns = frozenset("headers" if each.is_header else "tag" for part in conditions for each in part.names)
        self._condition = condition

    def passes(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        if self._condition is None:
            return pa.repeat(pa.scalar(True), rows.num_rows)
        return pc.fill_null(self._condition.truth(Columns(rows)), False)


@lru_cache(maxsize=64)
def parse_filter(text: str) -> Filter | None:
    """Return the filter; None: all messages pass. Raises InvalidFilter."""
    stripped = text.strip()
    if stripped in ("", ALL):
        return None
    if len(text) > CHARS_MAX:
        raise InvalidFilter(f"a filter has at most {CHARS_MAX} characters, this one has {len(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidFilter(f"a filter must be valid Unicode text: {error}") from error
    words = [word.strip() for word in stripped.split("||")]
    if all(map(_TAG.fullmatch, words)):
        return _TagFilter(frozenset(words))
    from ledgermq.filters.grammar import parse_sql

    return _SqlFilter(*parse_sql(text))


def filter_text(text: str) -> str:
    """Return the text by which filters are compared: equal texts mean equal filters. Raises InvalidFilter."""
    parsed = parse_filter(text)
    return ALL if parsed is None else parsed.text

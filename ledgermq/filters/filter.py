"""A filter, as programs write it: tags, or a condition of SQL over headers.

    "TagA || TagB"                            messages with one of these tags: words with || between them
    "region IN ('eu', 'us') AND price > 5"    a condition (`ledgermq.filters.grammar`)
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
from ledgermq.filters.conditions import Condition

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
    def columns(self) -> frozenset[str]:
        """The columns of the record schema that it reads."""
        ...

    def passes(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether it passes, without nulls. `rows`: a validated batch with these columns."""
        ...


class _TagFilter:
    columns = frozenset({"tag"})

    def __init__(self, tags: frozenset[str]) -> None:
        self.tags: frozenset[str] | None = tags
        self.text = " || ".join(sorted(tags))
        self._set = pa.array(sorted(tags), pa.string())

    def passes(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        return pc.is_in(rows.column("tag"), value_set=self._set)


class _SqlFilter:
    tags: frozenset[str] | None = None

    def __init__(self, condition: Condition) -> None:
        self.text = str(condition)
        self.columns = frozenset("headers" if name.is_header else "tag" for name in condition.names)
        self._condition = condition

    def passes(self, rows: pa.RecordBatch) -> pa.BooleanArray:
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

    return _SqlFilter(parse_sql(text))


def filter_text(text: str) -> str:
    """Return the text by which filters are compared: equal texts mean equal filters. Raises InvalidFilter."""
    parsed = parse_filter(text)
    return ALL if parsed is None else parsed.text

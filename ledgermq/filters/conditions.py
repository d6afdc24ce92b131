"""The conditions that an SQL filter is made of, and what each says of the rows of a batch.

Logic has three values, as in SQL: a comparison with a header that a message lacks is neither true nor
false but unknown (null), and so is its negation. A message passes if the whole is true.

    NOT unknown = unknown    unknown AND false = false    unknown OR true = true

The text of a condition (`str`) is an expression that is read as an equal condition.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import reduce
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.filters.columns import TAGS, Column, Columns

Number = int | Decimal
Constant = str | bool | Number
Comparing = Literal["=", "<>", "<", "<=", ">", ">="]
TextTest = Literal["CONTAINS", "STARTSWITH", "ENDSWITH"]

RESERVED = frozenset(
    "AND OR NOT IN IS NULL BETWEEN LIKE ESCAPE TRUE FALSE CONTAINS STARTSWITH ENDSWITH".split()  # noqa: SIM905
)
PLAIN_NAME = r"[A-Za-z_][A-Za-z0-9_.]*"
"""Names of headers that need no quotes, unless they are reserved words."""

_PLAIN = re.compile(PLAIN_NAME)
_EXACT = Context(prec=2000)
_COMPARE: dict[Comparing, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition(Protocol):
    @property
    def names(self) -> frozenset[Name]:
        """The headers that it reads, and the tag."""
        ...

    @property
    def depth(self) -> int:
        """How many conditions are nested in it, itself included."""
        ...

    def truth(self, columns: Columns) -> pa.BooleanArray:
        """Return for each row true, false, or null: unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Name:
    """A header, or the tag."""

    text: str
    is_header: bool = True

    def column(self, columns: Columns) -> Column:
        return columns.of(self.text, is_header=self.is_header)

    def __str__(self) -> str:
        plain = _PLAIN.fullmatch(self.text) and self.text.upper() not in RESERVED
        if not self.is_header or (plain and self.text != TAGS):
            return self.text
        return '"' + self.text.replace('"', '""') + '"'


def written(constant: Constant) -> str:
    """Return a constant as an expression has it."""
    if isinstance(constant, bool):
        return str(constant).upper()
    if isinstance(constant, str):
        return "'" + constant.replace("'", "''") + "'"
    if isinstance(constant, int):
        return str(constant)
    return str(constant.normalize(_EXACT) if constant else 0)


# -- logic


@dataclass(frozen=True, slots=True)
class _Joined:
    parts: tuple[Condition, ...]

    @property
    def names(self) -> frozenset[Name]:
        return frozenset().union(*(part.names for part in self.parts))

    @property
    def depth(self) -> int:
        return 1 + max(part.depth for part in self.parts)


@dataclass(frozen=True, slots=True)
class And(_Joined):
    def truth(self, columns: Columns) -> pa.BooleanArray:
        return reduce(pc.and_kleene, (part.truth(columns) for part in self.parts))

    def __str__(self) -> str:
        return " AND ".join(_inner(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or(_Joined):
    def truth(self, columns: Columns) -> pa.BooleanArray:
        return reduce(pc.or_kleene, (part.truth(columns) for part in self.parts))

    def __str__(self) -> str:
        return " OR ".join(_inner(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition

    @property
    def names(self) -> frozenset[Name]:
        return self.part.names

    @property
    def depth(self) -> int:
        return 1 + self.part.depth

    def truth(self, columns: Columns) -> pa.BooleanArray:
        return pc.invert(self.part.truth(columns))

    def __str__(self) -> str:
        return f"NOT ({self.part})"


def as_part(condition: Condition) -> str:
    """Return the text of a condition as one that AND may join to others."""
    return str(condition) if isinstance(condition, And) else _inner(condition)


def _inner(part: Condition) -> str:
    return f"({part})" if isinstance(part, _Joined) else str(part)


# -- tests of one header


@dataclass(frozen=True, slots=True)
class _Test:
    name: Name

    @property
    def names(self) -> frozenset[Name]:
        return frozenset({self.name})

    @property
    def depth(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class IsTrue(_Test):
    """The header reads as TRUE."""

    def truth(self, columns: Columns) -> pa.BooleanArray:
        return self.name.column(columns).judge_booleans(bool, None)

    def __str__(self) -> str:
        return f"({self.name})"  # alone, without brackets, it would be a filter by tag


@dataclass(frozen=True, slots=True)
class IsNull(_Test):
    """The message lacks the header, or it has no value."""

    def truth(self, columns: Columns) -> pa.BooleanArray:
        return self.name.column(columns).is_null()

    def __str__(self) -> str:
        return f"{self.name} IS NULL"


@dataclass(frozen=True, slots=True)
class Compare(_Test):
    """A header beside a constant, which decides the kind: a number is compared with the number that the header
    reads as. A header that reads as none differs from each, and is neither below nor above.
    """

    how: Comparing
    constant: Constant

    def truth(self, columns: Columns) -> pa.BooleanArray:
        column, constant, how = self.name.column(columns), self.constant, _COMPARE[self.how]
        otherwise = {"=": False, "<>": True}.get(self.how)
        if isinstance(constant, bool):
            return column.judge_booleans(lambda own: how(own, constant), otherwise)
        if isinstance(constant, str):
            return column.judge_texts(lambda own: how(own, constant))
        return column.judge_numbers(lambda own: how(own, constant), otherwise)

    def __str__(self) -> str:
        return f"{self.name} {self.how} {written(self.constant)}"


@dataclass(frozen=True, slots=True)
class CompareNames(_Test):
    """Two headers: as numbers if both read as one, else as text."""

    how: Comparing
    other: Name

    @property
    def names(self) -> frozenset[Name]:
        return frozenset({self.name, self.other})

    def truth(self, columns: Columns) -> pa.BooleanArray:
        how = _COMPARE[self.how]
        pairs = zip(self.name.column(columns).rows(), self.other.column(columns).rows(), strict=True)

        def test(one: tuple[str | None, Number | None], two: tuple[str | None, Number | None]) -> bool | None:
            if one[0] is None or two[0] is None:
                return None
            return how(one[0], two[0]) if one[1] is None or two[1] is None else how(one[1], two[1])

        return pa.array([test(one, two) for one, two in pairs], pa.bool_())

    def __str__(self) -> str:
        return f"{self.name} {self.how} {self.other}"


@dataclass(frozen=True, slots=True)
class Between(_Test):
    """Two texts or two numbers, both included."""

    low: str | Number
    high: str | Number

    def truth(self, columns: Columns) -> pa.BooleanArray:
        column, low, high = self.name.column(columns), self.low, self.high
        if isinstance(low, str) or isinstance(high, str):
            return column.judge_texts(lambda own: str(low) <= own <= str(high))
        return column.judge_numbers(lambda own: low <= own <= high, None)

    def __str__(self) -> str:
        return f"{self.name} BETWEEN {written(self.low)} AND {written(self.high)}"


@dataclass(frozen=True, slots=True)
class In(_Test):
    """Equal to one of the constants."""

    texts: frozenset[str]
    numbers: frozenset[Number]
    booleans: frozenset[bool]

    def truth(self, columns: Columns) -> pa.BooleanArray:
        column = self.name.column(columns)
        found = column.judge_texts(self.texts.__contains__)
        if self.numbers:
            found = pc.or_kleene(found, column.judge_numbers(self.numbers.__contains__, False))
        if self.booleans:
            found = pc.or_kleene(found, column.judge_booleans(self.booleans.__contains__, False))
        return found

    def __str__(self) -> str:
        constants = sorted(written(each) for each in (*self.texts, *self.numbers, *self.booleans))
        return f"{self.name} IN ({', '.join(constants)})"


@dataclass(frozen=True, slots=True)
class Texts(_Test):
    """The text contains another one, or begins or ends with it."""

    how: TextTest
    text: str

    def truth(self, columns: Columns) -> pa.BooleanArray:
        text = self.text
        tests: dict[TextTest, Callable[[str], bool]] = {
            "CONTAINS": lambda own: text in own,
            "STARTSWITH": lambda own: own.startswith(text),
            "ENDSWITH": lambda own: own.endswith(text),
        }
        return self.name.column(columns).judge_texts(tests[self.how])

    def __str__(self) -> str:
        return f"{self.name} {self.how} {written(self.text)}"


@dataclass(frozen=True, slots=True)
class Like(_Test):
    """The text has the form of a pattern: % stands for any characters, _ for one, and the character `escape`
    takes the meaning from the next. Upper and lower case differ. RE2 matches it, in linear time.
    """

    pattern: str
    escape: str = ""

    def truth(self, columns: Columns) -> pa.BooleanArray:
        regex = self._regex()
        return self.name.column(columns).judge_all_texts(lambda texts: pc.match_substring_regex(texts, regex))

    def _regex(self) -> str:
        parts: list[str] = []
        characters = iter(self.pattern)
        for each in characters:
            if each == self.escape:
                parts.append(_literal(next(characters)))
            else:
                parts.append({"%": ".*", "_": "."}.get(each) or _literal(each))
        return r"(?s)\A" + "".join(parts) + r"\z"

    def __str__(self) -> str:
        escape = f" ESCAPE {written(self.escape)}" if self.escape else ""
        return f"{self.name} LIKE {written(self.pattern)}{escape}"


def _literal(character: str) -> str:
    """Return RE2's expression for one character."""
    return character if character.isalnum() else f"\\x{{{ord(character):x}}}"


def is_whole(pattern: str, escape: str) -> bool:
    """Return whether the escape character is followed by a character wherever it stands."""
    characters = iter(pattern)
    return all(each != escape or next(characters, None) is not None for each in characters)

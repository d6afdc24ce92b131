"""Read an SQL filter: RocketMQ's SQL92 over headers, and LIKE.

The parser is lark's LALR(1): its time is linear in the text, and it does not recurse, whatever the text.
Conditions are made while it reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, cast

from lark import Lark, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from ledgermq.errors import InvalidFilter
from ledgermq.filters.columns import NUMBER, TAGS, number_of
from ledgermq.filters.conditions import (
    PLAIN_NAME,
    And,
    Between,
    Compare,
    CompareNames,
    Comparing,
    Condition,
    Constant,
    In,
    IsNull,
    IsTrue,
    Like,
    Name,
    Not,
    Or,
    Texts,
    TextTest,
    is_whole,
)

DEPTH_MAX = 32
"""How deep conditions may be nested."""
NEAR_CHARS = 20
"""Characters of the expression that an error shows."""
PATTERN_CHARS_MAX = 256
"""Longest pattern of LIKE."""

_GRAMMAR = r"""
start: either | call (_AND negation)*
call: _FUNCTION "(" STRING ")"
either: both (_OR both)*
both: negation (_AND negation)*
?negation: NOT negation                                 -> negate
    | "(" either ")"
    | name                                              -> is_true
    | name COMPARE constant                             -> compare
    | constant COMPARE name                             -> compare_turned
    | name COMPARE name                                 -> compare_names
    | name _IS [NOT] _NULL                              -> is_null
    | name [NOT] _BETWEEN constant _AND constant        -> between
    | name [NOT] _IN "(" constant ("," constant)* ")"   -> one_of
    | name [NOT] _LIKE STRING [_ESCAPE STRING]          -> like
    | name [NOT] TEXT_TEST STRING                       -> text_test
name: NAME | QUOTED
constant: NUMBER | STRING | BOOLEAN
COMPARE: "<>" | "!=" | "<=" | ">=" | "=" | "<" | ">"
STRING: /'([^']|'')*'/
QUOTED: /"([^"]|"")+"/
%ignore /\s+/
"""
_WORDS = {word: f"_{word}" for word in ("AND", "OR", "IN", "IS", "NULL", "BETWEEN", "LIKE", "ESCAPE")} | {
    "NOT": "NOT",
    "TRUE|FALSE": "BOOLEAN",
    "CONTAINS|STARTSWITH|ENDSWITH": "TEXT_TEST",
}
"""Words that are no names, in any case, and the terminals that they are; one that begins with _ is dropped."""
_TERMINALS = [f"{name}.2: /({word})(?![A-Za-z0-9_.])/i" for word, name in _WORDS.items()] + [
    r"_FUNCTION.3: /FUNCTION(?=\s*\()/i",
    f"NAME: /{PLAIN_NAME}/",
    f"NUMBER: /{NUMBER}(?![A-Za-z0-9_.])/",
]
_SHOWN = {
    "NAME": "a header",
    "QUOTED": "a header",
    "STRING": "'text'",
    "NUMBER": "a number",
    "BOOLEAN": "TRUE or FALSE",
    "COMPARE": "= <> < <= > or >=",
    "TEXT_TEST": "CONTAINS, STARTSWITH, ENDSWITH",
    "_FUNCTION": "FUNCTION('name')",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": "a comma",
    "$END": "the end",
}
"""How errors show what may come next; other words show as themselves."""


FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
FUNCTION_FIRST = (
    "a filter has one FUNCTION('name'), at its begin, outside of brackets; AND may follow it, and OR within brackets"
)


class _Call(str):
    """The name of a function."""

    __slots__ = ()


class Parsed(NamedTuple):
    """A message passes if the condition is true and the function of the broker keeps it; None, "": there is none."""

    condition: Condition | None
    function: str = ""


class _Refusal(Exception):
    """`at`: the place; None: the whole text."""

    def __init__(self, at: int | None, why: str) -> None:
        self.at = at
        self.why = why


class _Making:
    """Makes conditions from what the parser has read: one method for each rule."""

    @staticmethod
    def start(parts: Sequence[Any]) -> Parsed:
        if not isinstance(parts[0], _Call):
            return Parsed(parts[0])
        conditions: Sequence[Condition] = parts[1:]
        condition = None if not conditions else conditions[0] if len(conditions) == 1 else And(tuple(conditions))
        return Parsed(condition if condition is None else _shallow(condition), parts[0])

    @staticmethod
    def call(parts: Sequence[Token]) -> _Call:
        [word] = parts
        name = _text(word)
        if FUNCTION_NAME.fullmatch(name) is None:
            raise _Refusal(_at(word), "a name of a function has 1 to 100 letters, digits, and the signs _ . -")
        return _Call(name)

    @staticmethod
    def either(parts: Sequence[Condition]) -> Condition:
        return parts[0] if len(parts) == 1 else _shallow(Or(tuple(parts)))

    @staticmethod
    def both(parts: Sequence[Condition]) -> Condition:
        return parts[0] if len(parts) == 1 else _shallow(And(tuple(parts)))

    @staticmethod
    def negate(parts: tuple[Token, Condition]) -> Condition:
        return _shallow(Not(parts[1]))

    @staticmethod
    def name(parts: Sequence[Token]) -> Name:
        [word] = parts
        if word.type == "QUOTED":
            return Name(word[1:-1].replace('""', '"'))
        return Name(str(word), is_header=word != TAGS)

    @staticmethod
    def constant(parts: Sequence[Token]) -> tuple[Constant, int]:
        [word] = parts
        if word.type == "STRING":
            return _text(word), _at(word)
        if word.type == "BOOLEAN":
            return word.upper() == "TRUE", _at(word)
        number = number_of(word)
        if number is None:
            raise _Refusal(_at(word), "the number is too long")
        return number, _at(word)

    @staticmethod
    def is_true(parts: Sequence[Name]) -> Condition:
        return IsTrue(parts[0])

    @staticmethod
    def compare(parts: tuple[Name, Token, tuple[Constant, int]]) -> Condition:
        name, how, (constant, _) = parts
        return _compared(name, _comparing(how), constant, how)

    @staticmethod
    def compare_turned(parts: tuple[tuple[Constant, int], Token, Name]) -> Condition:
        (constant, _), how, name = parts
        turned: dict[Comparing, Comparing] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
        return _compared(name, turned.get(_comparing(how), _comparing(how)), constant, how)

    @staticmethod
    def compare_names(parts: tuple[Name, Token, Name]) -> Condition:
        name, how, other = parts
        return CompareNames(name, _comparing(how), other)

    @staticmethod
    def is_null(parts: tuple[Name, Token | None]) -> Condition:
        name, negation = parts
        return _negated(IsNull(name), negation)

    @staticmethod
    def between(parts: tuple[Name, Token | None, tuple[Constant, int], tuple[Constant, int]]) -> Condition:
        name, negation, (low, at), (high, _) = parts
        if isinstance(low, bool) or isinstance(high, bool) or isinstance(low, str) is not isinstance(high, str):
            raise _Refusal(at, "BETWEEN needs two numbers or two texts")
        return _negated(Between(name, low, high), negation)

    @staticmethod
    def one_of(parts: Sequence[Any]) -> Condition:
        name, negation, *constants = parts
        given = [constant for constant, _ in constants]
        texts = frozenset(each for each in given if isinstance(each, str))
        numbers = frozenset(each for each in given if not isinstance(each, str | bool))
        booleans = frozenset(each for each in given if isinstance(each, bool))
        return _negated(In(name, texts, numbers, booleans), negation)

    @staticmethod
    def like(parts: tuple[Name, Token | None, Token, Token | None]) -> Condition:
        name, negation, pattern, escape = parts
        text, escaping = _text(pattern), "" if escape is None else _text(escape)
        if len(text) > PATTERN_CHARS_MAX:
            raise _Refusal(_at(pattern), f"a pattern of LIKE has at most {PATTERN_CHARS_MAX} characters")
        if escape is not None and len(escaping) != 1:
            raise _Refusal(_at(escape), "ESCAPE needs one character")
        if not is_whole(text, escaping):
            raise _Refusal(_at(pattern), "the pattern ends with its escape character")
        return _negated(Like(name, text, escaping), negation)

    @staticmethod
    def text_test(parts: tuple[Name, Token | None, Token, Token]) -> Condition:
        name, negation, how, text = parts
        return _negated(Texts(name, cast(TextTest, how.upper()), _text(text)), negation)


def parse_sql(text: str) -> Parsed:
    """Return what the text says. Raises InvalidFilter, which names the place."""
    try:
        return cast(Parsed, _parser().parse(text))
    except _Refusal as refusal:
        raise _invalid(text, refusal.at, refusal.why) from None
    except UnexpectedToken as error:
        at = len(text) if error.token.type == "$END" else _at(error.token)
        why = FUNCTION_FIRST if error.token.type == "_FUNCTION" else _expected(error.expected)
        raise _invalid(text, at, why) from None
    except UnexpectedCharacters as error:
        at = cast(int, error.pos_in_stream)
        raise _invalid(text, at, _unreadable(text[at])) from None
    except UnexpectedInput as error:
        raise _invalid(text, len(text), str(error)) from error


@cache
def _parser() -> Lark:
    return Lark("\n".join([_GRAMMAR, *_TERMINALS]), parser="lalr", lexer="basic", transformer=cast(Any, _Making()))


def _invalid(text: str, at: int | None, why: str) -> InvalidFilter:
    if at is None:
        return InvalidFilter(f"the filter cannot be used: {why}")
    near = f"near {text[at : at + NEAR_CHARS]!r}" if at < len(text) else "at the end"
    return InvalidFilter(f"the filter cannot be read at character {at + 1}, {near}: {why}")


def _expected(terminals: set[str]) -> str:
    shown = dict.fromkeys(_SHOWN.get(name, name.removeprefix("_")) for name in sorted(terminals))
    return f"expected one of: {', '.join(shown)}" if len(shown) > 1 else f"expected {', '.join(shown)}"


def _unreadable(character: str) -> str:
    if character in "'\"":
        return "the quotation mark is not closed, or nothing is between two of them"
    if character == "|":
        return "|| joins tags that are plain words; write others as TAGS IN ('one', 'two'), and OR between conditions"
    return "this is neither a header, a number, nor 'text'; put other names of headers in double quotes"


def _at(token: Token) -> int:
    assert token.start_pos is not None, "the lexer has read it"
    return token.start_pos


def _text(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _comparing(token: Token) -> Comparing:
    return cast(Comparing, "<>" if token == "!=" else str(token))


def _shallow(condition: Condition) -> Condition:
    """Check the depth of a condition whose parts were checked before."""
    if condition.depth > DEPTH_MAX:
        raise _Refusal(None, f"its conditions are nested more than {DEPTH_MAX} deep")
    return condition


def _compared(name: Name, how: Comparing, constant: Constant, token: Token) -> Condition:
    if isinstance(constant, bool) and how not in ("=", "<>"):
        raise _Refusal(_at(token), "TRUE and FALSE can only be equal to a header or not: use = or <>")
    return Compare(name, how, constant)


def _negated(condition: Condition, negation: Token | None) -> Condition:
    return condition if negation is None else Not(condition)

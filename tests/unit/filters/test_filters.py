"""Filters: what each form says of a message, what is refused and where, and what bounds hostile text."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ledgermq.client.settings.values import ConsumerSettings, GroupSettings, TableSettings
from ledgermq.errors import InvalidConfig, InvalidFilter
from ledgermq.filters.columns import VALUE_BYTES_MAX
from ledgermq.filters.filter import ALL, CHARS_MAX, filter_text, parse_filter
from ledgermq.protocol.batches.records import SCHEMA

Headers = list[tuple[str | None, bytes | None]]


def row(tag: str | None = None, *headers: tuple[str | None, bytes | None], null: bool = False) -> dict[str, object]:
    pairs = [{"key": key, "value": value} for key, value in headers]
    return {"value": b"v", "tag": tag, "headers": None if null else pairs}


def passes(text: str, *rows: dict[str, object]) -> list[bool]:
    found = parse_filter(text)
    assert found is not None
    return list(found.passes(pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)).to_pylist())


def passes_one(text: str, value: bytes | None) -> bool:
    """Whether a message passes whose header `a` has this value; also as one of many."""
    one = passes(text, row(None, ("a", value)))
    many = passes(text, *[row(None, ("a", value)), row(None)] * 20)
    assert many[::2] == one * 20
    return one[0]


# -- tags


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A", [True, False, False, False]),
        ("A || B", [True, True, False, False]),
        (" B||A||A ", [True, True, False, False]),
        ("a-1/x:é", [False, False, True, False]),
        ("TAGS IS NULL", [False, False, False, True]),
        ("TAGS = 'A' OR TAGS IN ('B', 'C')", [True, True, False, False]),
        ("NOT TAGS = 'A'", [False, True, True, False]),
    ],
)
def test_tags(text: str, expected: list[bool]) -> None:
    assert passes(text, row("A"), row("B"), row("a-1/x:é"), row(None)) == expected


@pytest.mark.parametrize("text", ["", "*", "  ", " * "])
def test_all_messages(text: str) -> None:
    assert parse_filter(text) is None
    assert filter_text(text) == ALL


def test_filters_that_mean_the_same_have_one_text() -> None:
    assert filter_text("B||A") == filter_text("A || B || B") == "A || B"
    assert filter_text("a>5.0 and b in('y','x')") == filter_text("a  >  +5 AND b IN ('x', 'y')")
    assert filter_text("(((a = 1)))") == "a = 1"
    assert filter_text("a != 1") == "a <> 1"
    assert filter_text("5 < a") == "a > 5"
    assert filter_text('"a" = 1') == "a = 1"
    assert filter_text('"TAGS" = 1') != filter_text("TAGS = 1")
    assert filter_text("a or b") == "(a) OR (b)"


# -- values


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        (
            "a > 5",
            [b"5.01", b"6", b"1e3", b"+10"],
            [b"5", b"-6", b"abc", b"", b"6 ", b"inf", b"nan", b"0x9", "٦".encode()],
        ),
        ("a = 10", [b"10", b"10.0", b"1e1", b"+10", b"010"], [b"10 ", b"ten", b"10.000000000000000001"]),
        ("a <> 10", [b"9", b"abc", b""], [b"10", b"10.0", b"\xff", None]),
        ("a = 12345678901234567890", [b"12345678901234567890"], [b"12345678901234567891"]),
        ("a = 0.1", [b"0.1", b"0.10", b"1e-1"], [b"0.1000000000000000055"]),
        ("a < '2'", [b"10", b"1", b""], [b"2", b"3"]),
        ("a = '10'", [b"10"], [b"10.0"]),
        ("a = TRUE", [b"true", b"TRUE"], [b"false", b"1", b"yes", None]),
        ("a <> TRUE", [b"false", b"yes"], [b"true", None]),
        ("NOT (a)", [b"false"], [b"true", b"yes", None]),
        ("a IN (1, 'x', TRUE)", [b"1", b"1.0", b"x", b"True"], [b"2", b"X", b"false", None]),
        ("a NOT IN (1, 'x')", [b"2", b"y"], [b"1", b"x", None, b"\xff"]),
        ("a IS NULL", [None], [b"", b"\xff"]),
        ("a IS NOT NULL", [b"", b"\xff"], [None]),
        ("a BETWEEN 1 AND 2", [b"1", b"2.0", b"1.5"], [b"0.9", b"x", None]),
        ("a NOT BETWEEN 1 AND 2", [b"3"], [b"1", b"x", None]),
        ("a BETWEEN 'b' AND 'd'", [b"b", b"c", b"d"], [b"a", b"da"]),
        ("a LIKE '%.pdf'", [b".pdf", b"x.pdf", b"\n.pdf"], [b"xpdf", b".PDF", b".pdf2", None]),
        ("a LIKE 'a_c'", [b"abc", "aéc".encode()], [b"ac", b"abbc"]),
        (r"a LIKE 'a\_c' ESCAPE '\'", [b"a_c"], [b"abc", rb"a\_c"]),
        (r"a LIKE 'a\%'", [rb"a\ ", rb"a\x"], [b"a%", b"ab"]),
        ("a LIKE '(x+)?'", [b"(x+)?"], [b"xx"]),
        ("a CONTAINS 'b'", [b"abc"], [b"aBc", b"", None]),
        ("a NOT STARTSWITH 'b'", [b"ab"], [b"b", None]),
        ("a ENDSWITH ''", [b"", b"x"], [None]),
    ],
)
def test_values(text: str, yes: list[bytes | None], no: list[bytes | None]) -> None:
    assert [value for value in yes if not passes_one(text, value)] == []
    assert [value for value in no if passes_one(text, value)] == []


def test_absent_headers_are_unknown() -> None:
    nothing = [row(None, null=True), row(None), row(None, ("b", b"1")), row(None, (None, b"1")), row(None, ("a", None))]
    for text in (
        "a = 1",
        "a <> 1",
        "NOT a = 1",
        "a LIKE '%'",
        "a NOT IN (1)",
        "a = 1 AND b = 1",
        "NOT (a = 1 OR b = 2)",
    ):
        assert passes(text, *nothing) == [False] * 5, text
    assert passes("a IS NULL", *nothing) == [True] * 5
    assert passes("a = 1 OR b = 1", *nothing) == [False, False, True, False, False]
    assert passes("NOT (a = 1 AND b = 2)", *nothing) == [False, False, True, False, False]


def test_the_last_of_several_headers_counts() -> None:
    rows = [
        row(None, ("a", b"1"), ("b", b"5"), ("a", b"2")),
        row(None, ("a", b"2"), ("a", None)),
        row(None, ("a", b"2")),
    ]
    for many in (1, 20):
        assert passes("a = 2", *rows * many) == [True, False, True] * many
        assert passes("a IS NULL", *rows * many) == [False, True, False] * many


def test_two_headers() -> None:
    rows = [
        row(None, ("a", a), ("b", b))
        for a, b in [(b"9", b"10"), (b"9", b"x"), (b"y", b"x"), (b"1", None), (b"2", b"2.0")]
    ]
    assert passes("a < b", *rows) == [True, True, False, False, False]
    assert passes("a = b", *rows) == [False, False, False, False, True]


def test_names_with_other_characters_stand_in_quotes() -> None:
    rows = [row(None, ("content-type", b"json")), row(None, ('say "hi"', b"json")), row(None, ("and", b"json"))]
    assert passes("\"content-type\" = 'json'", *rows) == [True, False, False]
    assert passes('"say ""hi""" = \'json\'', *rows) == [False, True, False]
    assert passes("\"and\" = 'json'", *rows) == [False, False, True]
    assert passes("ledgermq.x = 1", row(None, ("ledgermq.x", b"1"))) == [True]


def test_long_values_are_neither_text_nor_number() -> None:
    assert passes_one("a STARTSWITH 'x'", b"x" * VALUE_BYTES_MAX)
    assert not passes_one("a STARTSWITH 'x'", b"x" * (VALUE_BYTES_MAX + 1))
    assert passes_one("a IS NOT NULL", b"x" * (VALUE_BYTES_MAX + 1))
    assert not passes_one("a > 1", b"9" * 65)


# -- what is refused


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("a >", "at character 4, at the end", "expected one of"),
        ("a > 5 b", "at character 7, near 'b'", "expected"),
        ("a = 'x", "at character 5", "not closed"),
        ('"" = 1', "at character 1", "nothing is between"),
        ("(a = 1", "at character 7, at the end", "expected"),
        ("a = NULL", "at character 5, near 'NULL'", "expected one of"),
        ("a == 1", "at character 4", "expected"),
        ("a = 1 || b = 2", "at character 7", "OR between conditions"),
        ("A || || B", "at character 3", "joins tags"),
        ("new york || B", "at character 5", "expected"),
        ("a > TRUE", "at character 3", "TRUE and FALSE"),
        ("a BETWEEN 1 AND 'x'", "at character 11", "two numbers or two texts"),
        ("a BETWEEN TRUE AND FALSE", "at character 11", "two numbers or two texts"),
        ("a LIKE 'x!' ESCAPE '!'", "at character 8", "escape character"),
        ("a LIKE 'x' ESCAPE '!!'", "at character 19", "one character"),
        ("a LIKE '" + "_" * 257 + "'", "at character 8", "at most 256"),
        ("a = " + "1" * 65, "at character 5", "too long"),
        ("content-type = 'json'", "at character 8", "double quotes"),
        ("1 = 1", "at character 5", "expected"),
        ("a IN ()", "at character 7", "expected"),
        ("a; DROP TABLE x", "at character 2", "double quotes"),
    ],
)
def test_an_error_names_the_place(text: str, place: str, why: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse_filter(text)
    assert place in caught.value.message
    assert why in caught.value.message


def test_hostile_text_is_bounded() -> None:
    with pytest.raises(InvalidFilter, match="at most 4096 characters"):
        parse_filter("a = 1 OR " * 1000 + "a = 1")
    deep = "a = 1"
    while len(deep) < CHARS_MAX - 20:
        deep = f"(a=1 OR ({deep} AND a=2))"
    for text in (deep, "NOT " * 33 + "a=1"):
        with pytest.raises(InvalidFilter, match="nested more than 32"):
            parse_filter(text)
    with pytest.raises(InvalidFilter, match="Unicode"):
        parse_filter("a = '\ud800'")
    with pytest.raises(InvalidFilter):
        parse_filter("(" * CHARS_MAX)
    brackets = CHARS_MAX // 2 - 3
    assert filter_text("(" * brackets + "a = 1" + ")" * brackets) == "a = 1"
    assert passes(" OR ".join(["a=1"] * 500), row(None, ("a", b"1"))) == [True]
    assert passes("NOT " * 30 + "a=1", row(None, ("a", b"1"))) == [True]


def test_like_takes_linear_time() -> None:
    """A backtracking matcher would not end."""
    text = "a LIKE '" + "%a_" * 80 + "b'"
    assert not passes_one(text, b"a" * VALUE_BYTES_MAX)


@pytest.mark.parametrize("kind", [ConsumerSettings, GroupSettings])
def test_settings_check_their_filter(kind: type[ConsumerSettings]) -> None:
    assert kind(filter="a > 1").filter == "a > 1"
    with pytest.raises(InvalidFilter, match="at the end"):
        kind(filter="a >")
    with pytest.raises(InvalidConfig, match="filter must be text"):
        kind(filter=5)  # type: ignore[arg-type]


def test_a_table_takes_no_filter() -> None:
    assert TableSettings(filter="*").filter == "*"
    with pytest.raises(InvalidConfig, match="a table cannot have a filter"):
        TableSettings(filter="A")


# -- functions


@pytest.mark.parametrize(
    ("text", "function", "uniform"),
    [
        ("FUNCTION('vip')", "vip", "FUNCTION('vip')"),
        ("function ( 'a.b-c_1' )", "a.b-c_1", "FUNCTION('a.b-c_1')"),
        ("FUNCTION('x') and a=1 and (b or c)", "x", "FUNCTION('x') AND a = 1 AND ((b) OR (c))"),
        ("FUNCTION('x') AND (a = 1 AND b = 2)", "x", "FUNCTION('x') AND a = 1 AND b = 2"),
        ("FUNCTION('x') AND (a = 1 OR b = 2)", "x", "FUNCTION('x') AND (a = 1 OR b = 2)"),
        ("function = 'x' AND FUNCTION > 1", "", "function = 'x' AND FUNCTION > 1"),
        ("(FUNCTION)", "", "(FUNCTION)"),
    ],
)
def test_a_function_comes_first_and_conditions_follow(text: str, function: str, uniform: str) -> None:
    found = parse_filter(text)
    assert found is not None
    assert (found.function, found.text, filter_text(uniform), found.tags) == (function, uniform, uniform, None)


@pytest.mark.parametrize(
    "text",
    [
        "a = 1 AND FUNCTION('x')",
        "FUNCTION('x') OR a = 1",
        "FUNCTION('x') AND a = 1 OR b = 1",
        "NOT FUNCTION('x')",
        "(FUNCTION('x'))",
        "FUNCTION('x') AND FUNCTION('y')",
        "FUNCTION('')",
        "FUNCTION('a b')",
        "FUNCTION('../x')",
        f"FUNCTION('{'x' * 101}')",
        "FUNCTION(x)",
        "FUNCTION('x'",
    ],
)
def test_a_function_anywhere_else_or_with_another_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidFilter):
        parse_filter(text)


def test_the_place_of_a_function_is_explained() -> None:
    with pytest.raises(InvalidFilter, match=r"at character 10, .*a filter has one FUNCTION\('name'\), at its begin"):
        parse_filter("a = 1 OR FUNCTION('x')")

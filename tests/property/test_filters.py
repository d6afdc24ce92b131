"""What an SQL filter says of rows is what SQLite says of them, where the two mean the same; and equal filters
have one text.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from decimal import Decimal

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from ledgermq.errors import InvalidFilter
from ledgermq.filters.filter import CHARS_MAX, Filter, parse_filter
from ledgermq.protocol.batches.records import SCHEMA

# Of each kind, headers that only have values of this kind, or none: between kinds SQLite has other rules.
NUMBERS, TEXTS, FLAGS = ("n", "m"), ("t", "u"), ("f",)
CHARACTERS = "aB%_'!\\é.\n"

numbers = st.integers(-20, 20).map(str) | st.sampled_from(["0.5", "2.50", "-1.25", "1e1", "+3", "7.", ".5"])
texts = st.text(CHARACTERS, max_size=4).map(lambda text: "x" + text)  # never reads as a number
patterns = st.text("aBx%_'é.", max_size=4)
flags = st.sampled_from(["true", "FALSE", "True"])
ROWS = st.lists(
    st.fixed_dictionaries({}, optional={"n": numbers, "m": numbers, "t": texts, "u": texts, "f": flags, "TAGS": texts}),
    min_size=1,
    max_size=30,
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def as_sqlite(number: str) -> str:
    """A number as SQLite writes it."""
    return repr(float(Decimal(number))) if set(number) & set(".e") else str(int(number))


ORDER = st.sampled_from(["<", "<=", ">", ">="])
COMPARING = st.sampled_from(["=", "<>", "!="]) | ORDER
TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
NOT = st.sampled_from(["", "NOT ", "not "])


@st.composite
def simple_conditions(draw: st.DrawFn) -> tuple[str, str]:
    """A condition in our words, and in SQLite's."""
    kind = draw(st.sampled_from(["number", "text", "flag"]))
    name = draw(st.sampled_from({"number": NUMBERS, "text": (*TEXTS, "TAGS"), "flag": FLAGS}[kind]))
    negated, how = draw(NOT), draw(st.integers(0, 5))
    if how == 0:
        return f"{name} IS {negated}NULL", f"{name} IS {negated}NULL"
    if kind == "flag":
        if how == 1:
            return f"NOT {name}", f"NOT {name}"
        equal, flag = draw(st.sampled_from(["=", "<>"])), draw(st.sampled_from(["TRUE", "false"]))
        return f"{name} {equal} {flag}", f"{name} {equal} {flag}"
    constants = st.tuples(numbers, numbers, numbers) if kind == "number" else st.tuples(texts, texts, texts)
    ours = [each if kind == "number" else quoted(each) for each in draw(constants)]
    theirs = [as_sqlite(each) if kind == "number" else each for each in ours]
    comparing = draw(COMPARING)
    if how == 1:
        return f"{name}{comparing}{ours[0]}", f"{name} {comparing} {theirs[0]}"
    if how == 2:
        turned = TURNED.get(comparing, comparing)
        return f"{ours[0]} {comparing} {name}", f"{name} {turned} {theirs[0]}"
    if how == 3:
        return (
            f"{name} {negated}BETWEEN {ours[0]} AND {ours[1]}",
            f"{name} {negated}BETWEEN {theirs[0]} AND {theirs[1]}",
        )
    if how == 4:
        return (f"{name} {negated}IN ({', '.join(ours)})", f"{name} {negated}IN ({', '.join(theirs)})")
    if kind == "number":
        other = draw(st.sampled_from(NUMBERS))
        return f"{name} {comparing} {other}", f"{name} {comparing} {other}"
    return draw(text_conditions(name, negated))


@st.composite
def text_conditions(draw: st.DrawFn, name: str, negated: str) -> tuple[str, str]:
    part = quoted(draw(st.text(CHARACTERS, min_size=1, max_size=2)))
    match draw(st.sampled_from(["LIKE", "ESCAPE", "CONTAINS", "STARTSWITH", "ENDSWITH"])):
        case "LIKE":
            pattern = quoted(draw(patterns))
            return f"{name} {negated}LIKE {pattern}", f"{name} {negated}LIKE {pattern}"
        case "ESCAPE":
            pattern = quoted(draw(patterns) + draw(st.sampled_from(["!%", "!_", "!!"])) + draw(patterns))
            return f"{name} {negated}like {pattern} escape '!'", f"{name} {negated}LIKE {pattern} ESCAPE '!'"
        case "CONTAINS":
            return f"{name} {negated}CONTAINS {part}", f"{negated} (instr({name}, {part}) > 0)"
        case "STARTSWITH":
            return f"{name} {negated}startswith {part}", f"{negated} (substr({name}, 1, length({part})) = {part})"
        case _:
            return (
                f"{name} {negated}ENDSWITH {part}",
                f"{negated} (length({name}) >= length({part}) AND substr({name}, -length({part})) = {part})",
            )


def joined(parts: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    def put(word: str, few: list[tuple[str, str]]) -> tuple[str, str]:
        return tuple(f" {word} ".join(f"({part[side]})" for part in few) for side in (0, 1))  # type: ignore[return-value]

    several = st.lists(parts, min_size=2, max_size=3)
    return st.one_of(
        several.map(lambda few: put("AND", few)),
        several.map(lambda few: put("or", few)),
        parts.map(lambda part: (f"NOT ({part[0]})", f"NOT ({part[1]})")),
    )


CONDITIONS = st.recursive(simple_conditions(), joined, max_leaves=8)


def batch(rows: list[dict[str, str]]) -> pa.RecordBatch:
    made = [
        {
            "value": b"v",
            "headers": [{"key": name, "value": value.encode()} for name, value in row.items() if name != "TAGS"]
            or None,
            "tag": row.get("TAGS"),
        }
        for row in rows
    ]
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


def by_sqlite(rows: list[dict[str, str]], condition: str) -> list[bool]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("PRAGMA case_sensitive_like = ON")
        db.execute("CREATE TABLE rows (n NUMERIC, m NUMERIC, t TEXT, u TEXT, f INTEGER, TAGS TEXT)")
        for row in rows:
            values: list[object] = [
                *(None if row.get(name) is None else float(Decimal(row[name])) for name in NUMBERS),
                *(row.get(name) for name in TEXTS),
                None if row.get("f") is None else row["f"].lower() == "true",
                row.get("TAGS"),
            ]
            db.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)", values)
        return [bool(truth) for (truth,) in db.execute(f"SELECT ({condition}) FROM rows ORDER BY rowid")]


def parsed(text: str) -> Filter:
    found = parse_filter(text)
    assert found is not None
    return found


@given(ROWS, CONDITIONS)
@example([{"n": "1"}, {}, {"n": "2"}] * 10, ("n = 1 OR NOT n = 1", "n = 1 OR NOT n = 1"))
def test_a_filter_says_what_sqlite_says(rows: list[dict[str, str]], conditions: tuple[str, str]) -> None:
    ours, theirs = conditions
    passes = parsed(ours).passes(batch(rows))
    assert passes.null_count == 0
    assert passes.to_pylist() == by_sqlite(rows, theirs), ours


@given(ROWS, CONDITIONS)
def test_the_text_of_a_filter_is_that_filter(rows: list[dict[str, str]], conditions: tuple[str, str]) -> None:
    first = parsed(conditions[0])
    second = parsed(first.text)
    assert second.text == first.text
    assert second.columns == first.columns
    assert second.passes(batch(rows)) == first.passes(batch(rows))


@given(ROWS, CONDITIONS, st.integers(1, 29))
def test_rows_are_judged_one_by_one(rows: list[dict[str, str]], conditions: tuple[str, str], at: int) -> None:
    """A row passes whatever the rows beside it, also in a slice of a batch."""
    whole = batch(rows)
    judge = parsed(conditions[0])
    together = judge.passes(whole).to_pylist()
    assert [judge.passes(whole.slice(row, 1)).to_pylist() for row in range(len(rows))] == [[each] for each in together]
    assert judge.passes(whole.slice(at)).to_pylist() == together[at:]


WORDS = [
    "a",
    "TAGS",
    '"q""q"',
    "'x'",
    "''",
    "1",
    "-2.5e3",
    "(",
    ")",
    ",",
    "=",
    "<>",
    "<",
    ">=",
    "AND",
    "OR",
    "NOT",
    "IN",
]
WORDS += [
    "IS",
    "NULL",
    "BETWEEN",
    "LIKE",
    "ESCAPE",
    "TRUE",
    "CONTAINS",
    "||",
    "*",
    "'",
    '"',
    "\0",
    "\ud800",
    "é",
    ";",
    "\n",
]


@given(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join) | st.text(max_size=30))
def test_any_text_is_a_filter_or_refused_with_a_reason(text: str) -> None:
    found = None
    with suppress(InvalidFilter):
        found = parse_filter(text)
    if found is not None:
        assert len(text) <= CHARS_MAX
        found.passes(batch([{"n": "1"}]))
        assert parsed(found.text).text == found.text

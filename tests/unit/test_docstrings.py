"""Docstrings say what a function does, and stand where they belong."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = (
    "ledger",
    "ledgermq",
    "ledgermq_gateway",
    "ledgermq_tools",
    "offsets",
    "spark",
    "stateless_broker",
    "infra",
    "bench",
    "tests",
)
FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if not path.stem.endswith("_pb2")]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(paths: list[Path]) -> Iterator[tuple[str, Function]]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def returns_what_it_does_not(function: Function) -> bool:
    """Whether the docstring says "Return …" though nothing is returned. "Return None: …" is true."""
    text = ast.get_docstring(function) or ""
    annotated = function.returns
    nothing = isinstance(annotated, ast.Constant) and annotated.value is None
    return nothing and re.match(r"(Return|Yield)s?\b(?! None\b)", text) is not None


def test_what_returns_nothing_does_not_say_return() -> None:
    found = [place for place, function in functions(FILES) if returns_what_it_does_not(function)]
    assert found == [], "say what it does: Wait until …, Stop …, Note …"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('def f() -> None:\n    """Return when it is done."""', True),
        ('async def f() -> None:\n    """Returns a thing."""', True),
        ('def f() -> None:\n    """Return None: there is nothing."""', False),
        ('def f() -> int:\n    """Return one."""', False),
    ],
)
def test_the_rule_itself(code: str, found: bool) -> None:
    (function,) = ast.parse(code).body
    assert isinstance(function, Function)
    assert returns_what_it_does_not(function) is found


def test_no_comment_stands_behind_the_bracket_that_a_formatter_broke() -> None:
    """`if (…\\n): # why`: the comment belongs above the statement."""
    torn = re.compile(r"^\s*\):\s+# (?!noqa|type:)", re.MULTILINE)
    assert [str(path.relative_to(ROOT)) for path in FILES if torn.search(path.read_text())] == []


def test_every_stands_apart_from_for() -> None:
    words = re.compile("for" + r"every(thing)?\b")
    assert [str(path.relative_to(ROOT)) for path in FILES if words.search(path.read_text())] == []

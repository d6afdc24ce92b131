"""Bound the texts of schemas before any library reads them: size, depth, number of values. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from ledgermq.errors import InvalidRequest

TEXT_BYTES_MAX = 512 * 1024
DEPTH_MAX = 64
"""Brackets within brackets. Libraries go down by recursion, and end a process that is too deep."""
VALUES_MAX = 20_000

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(r"[\[{\]}]")


def check_size(text: str) -> None:
    """Raise InvalidRequest if a schema is too long."""
    size = len(text.encode(errors="surrogatepass"))
    if size > TEXT_BYTES_MAX:
        raise InvalidRequest(f"a schema has at most {TEXT_BYTES_MAX} bytes, this one has {size}: split it")


def load_json(text: str) -> Any:
    """Return the value of a schema that is written in JSON. Raises InvalidRequest."""
    check_size(text)
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub("", text)):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > DEPTH_MAX:
            raise InvalidRequest(f"the schema has more than {DEPTH_MAX} brackets within one another: split it")
    try:
        found = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant)
        canonical(found).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the schema is no valid JSON: {str(error)[:200]}") from error
    _check_values(found)
    return found


def canonical(value: Any) -> str:
    """Return JSON without spacing; the order of names stays."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _check_values(value: Any) -> None:
    waiting, seen = [value], 0
    while waiting:
        each = waiting.pop()
        seen += 1
        if seen > VALUES_MAX:
            raise InvalidRequest(f"the schema has more than {VALUES_MAX} values: split it")
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)

"""Rows of JSON values. A value is read by the columns of its schema, not validated by it: what the schema bounds beyond
types (`pattern`, `required`) is left to readers.
"""

from __future__ import annotations

import json
import math
from typing import Any

from ledgermq_ledger.schemas.fields import ELEMENT, JSON, LIST, MAP, STRUCT, VALUE
from ledgermq_ledger.typed.rows.bounds import BadValue, ReadRow, check_int64, check_text, needed, text_of
from ledgermq_ledger.typed.shape import Node

_NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
EXACT_MAX = 2**53


def reader_of(text: str, root: Node) -> ReadRow:
    """Return what reads a value. `root`: the fields of its values."""

    def row(data: bytes) -> dict[str, Any] | None:
        try:
            value = json.loads(data.decode(), object_pairs_hook=_pairs, parse_constant=_constant)
        except UnicodeDecodeError:
            raise BadValue("it is not UTF-8") from None
        except BadValue:
            raise
        except ValueError as error:
            raise BadValue(f"it is no JSON: {error}") from None
        found: dict[str, Any] | None = _converted(value, root)
        return found

    return row


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadValue("a name stands twice in one object")
    return found


def _constant(text: str) -> None:
    raise BadValue(f"{text} is no JSON")


def _converted(value: Any, node: Node) -> Any:
    if value is None:
        return None
    match node.type:
        case "long":
            return _integer(value)
        case "double":
            return _number(value)
        case "string":
            if not isinstance(value, str):
                raise needed(_NAMES[type(value)], "string")
            return check_text(value)
        case "bool":
            if not isinstance(value, bool):
                raise needed(_NAMES[type(value)], "boolean")
            return value
        case "null":
            raise needed(_NAMES[type(value)], "null")
    return _nested(value, node)


def _integer(value: Any) -> int:
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT_MAX:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        is_number = isinstance(value, float)
        raise needed(f"the number {value!r}" if is_number else _NAMES[type(value)], "integer")
    return check_int64(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise needed(_NAMES[type(value)], "number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise BadValue("the number is too large")
    return found


def _nested(value: Any, node: Node) -> Any:
    if node.type == JSON:
        return check_text(text_of(value))
    if node.type == LIST:
        if not isinstance(value, list):
            raise needed(_NAMES[type(value)], "array")
        item = node.child(ELEMENT)
        return None if item is None else [_converted(each, item) for each in value]
    if not isinstance(value, dict):
        raise needed(_NAMES[type(value)], "object")
    if node.type == MAP:
        inner = node.child(VALUE)
        return None if inner is None else [(check_text(k), _converted(v, inner)) for k, v in value.items()]
    if node.type != STRUCT:
        raise AssertionError(f"a JSON schema has no field of type {node.type}")
    found = {}
    for child in node.children:
        try:
            found[child.name] = _converted(value.get(child.source), child)
        except BadValue as error:
            raise error.within(child.source) from None
    return found

"""JSON Schemas. The library jsonschema-rs checks them; `refusals` compares two of them.

Compared: jsonschema matches patterns with Python's own expressions, which one hostile pattern stops
forever; jsonschema-rs matches them in linear time. Neither compares schemas, and what does (jsonsubschema) is no longer
kept up, so the comparison is here. It is cautious: what it cannot judge has to stay as it is.

One rule is lenient, as producers are: a property that a schema does not name is not written by it, also where
additional properties are allowed. Otherwise no property could ever be added to an open schema.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ledgermq.errors import InvalidRequest
from ledgermq_broker.schemas.state.bounds import canonical, load_json
from ledgermq_broker.schemas.state.kinds.parsed import Parsed
from ledgermq_ledger.schemas.fields import (
    ELEMENT,
    JSON,
    LIST,
    MAP,
    RECURSION_MAX,
    ROOT,
    STRUCT,
    VALUE,
    Field,
    check_count,
)

KIND = "json"
STEPS_MAX = 5_000
"""Pairs of parts that one comparison looks at."""
REASONS_MAX = 20
FIELD_ID = "x-field-id"
"""Keeps the id of a property that is renamed."""

_SCALARS = {"string": "string", "integer": "long", "number": "double", "boolean": "bool", "null": "null"}
_ALL_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$comment", "$defs", "$anchor", "definitions", "title", "description", "default", "examples"}
    | {"deprecated", "readOnly", "writeOnly"}
)
_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_JUDGED = frozenset(
    {*_LOWER, *_UPPER, "type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"}
    | {"oneOf", "$ref"}
)


def parse(text: str) -> Parsed:
    """Raises InvalidRequest."""
    import jsonschema_rs

    value = load_json(text)
    if not isinstance(value, dict):
        raise InvalidRequest("a JSON schema is an object")
    try:
        jsonschema_rs.meta.validate(value)
        jsonschema_rs.validator_for(
            value, retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions(size_limit=2**20)
        )
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise InvalidRequest(f"the JSON schema is not right: {str(error)[:300]}") from error
    walk = _Walk(value)
    walk.into(value, ROOT, is_root=True)
    return Parsed(KIND, text, canonical(value), tuple(walk.found), value)


def _refuse(uri: str) -> None:
    raise ValueError(f"it refers to {uri[:100]}, outside of itself: brokers fetch nothing")


def _resolved(root: Mapping[str, Any], node: Any) -> Any:
    """Return what a local reference stands for. Raises InvalidRequest."""
    for _ in range(RECURSION_MAX * 10):
        if not (isinstance(node, dict) and isinstance(node.get("$ref"), str)):
            return node
        reference, found = node["$ref"], root
        if not reference.startswith("#/") and reference != "#":
            raise InvalidRequest(f"the reference {reference[:100]!r} is not one within the schema (#/…)")
        for part in reference[2:].split("/") if reference != "#" else ():
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise InvalidRequest(f"the reference {reference[:100]!r} leads nowhere")
            found = found[name]
        node = found
    raise InvalidRequest("references of the schema go in a circle")


class _Walk:
    """Collect the fields of a schema. What is no struct, list, map or scalar is a column of JSON text."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.found: list[Field] = []
        self._root = root
        self._open: Counter[int] = Counter()

    def into(self, node: Any, at: Field, *, is_root: bool = False) -> None:
        node = _resolved(self._root, node)
        type_ = _column(node)
        if self._open[id(node)] >= RECURSION_MAX:
            type_ = JSON
        if not is_root:
            check_count(self.found)
            self.found.append(Field(at.path, type_, at.identity, at.former))
        self._open[id(node)] += 1
        if type_ == STRUCT:
            for name, inner in node["properties"].items():
                known = inner.get(FIELD_ID) if isinstance(inner, dict) else None
                self.into(inner, at.child(name, "", f"#{known}" if isinstance(known, int) else ""))
        elif type_ == LIST:
            self.into(node["items"], at.child(ELEMENT, ""))
        elif type_ == MAP:
            self.into(node["additionalProperties"], at.child(VALUE, ""))
        self._open[id(node)] -= 1


def _column(node: Any) -> str:
    if not isinstance(node, dict):
        return JSON
    types = node.get("type")
    real = [each for each in ([types] if isinstance(types, str) else types or []) if each != "null"]
    if len(real) != 1:
        values = node.get("enum", [node["const"]] if "const" in node else [])
        return "string" if values and all(isinstance(each, str) for each in values) else JSON
    if real[0] == "object":
        if isinstance(node.get("properties"), dict) and node["properties"]:
            return STRUCT
        return MAP if isinstance(node.get("additionalProperties"), dict) else JSON
    if real[0] == "array":
        return LIST if isinstance(node.get("items"), dict) else JSON
    return _SCALARS[real[0]]


def refusals(reader: Mapping[str, Any], writer: Mapping[str, Any]) -> list[str]:
    """Return why the reader's schema refuses values of the writer's; nothing if it takes all of them."""
    comparison = _Comparison(reader, writer)
    comparison.parts(reader, writer, "")
    return comparison.why


class _Comparison:
    def __init__(self, reader: Mapping[str, Any], writer: Mapping[str, Any]) -> None:
        self.why: list[str] = []
        self._reader, self._writer = reader, writer
        self._seen: set[tuple[int, int]] = set()
        self._steps = 0

    def parts(self, reader: Any, writer: Any, at: str) -> bool:
        """Compare two parts; return whether the reader's takes all values of the writer's."""
        reader, writer = _resolved(self._reader, reader), _resolved(self._writer, writer)
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise InvalidRequest("the schemas are too large to be compared: split them, or use the mode none")
        if (id(reader), id(writer)) in self._seen or reader is True or reader == {} or _is_same(reader, writer):
            return True
        if reader is False or writer is True:
            return self._refuse(at, "the reader takes nothing here" if reader is False else "it took any value")
        if writer is False:
            return True
        self._seen.add((id(reader), id(writer)))
        before = len(self.why)
        for check in (self._types, self._values, self._bounds, self._others, self._branches):
            check(reader, writer, at)
        self._properties(reader, writer, at)
        if "items" in reader and "array" in _types_of(writer):
            self.parts(reader["items"], writer.get("items", True), f"{at}/{ELEMENT}")
        return len(self.why) == before

    def _refuse(self, at: str, why: str) -> bool:
        if len(self.why) < REASONS_MAX:
            self.why.append(f"{at[:200] or '/'}: {why}")
        return False

    def _types(self, reader: Any, writer: Any, at: str) -> None:
        takes = _types_of(reader)
        lacking = {each for each in _types_of(writer) - takes if not (each == "integer" and "number" in takes)}
        if lacking:
            self._refuse(at, f"{', '.join(sorted(lacking))} is no longer allowed")

    def _values(self, reader: Any, writer: Any, at: str) -> None:
        takes = _values_of(reader)
        if takes is None:
            return
        given = _values_of(writer)
        if given is None or not given <= takes:
            self._refuse(at, "it has fewer values than before")

    def _bounds(self, reader: Any, writer: Any, at: str) -> None:
        for names, worse in ((_LOWER, lambda new, old: new > old), (_UPPER, lambda new, old: new < old)):
            for name in names:
                if name in reader and (name not in writer or _is_worse(worse, reader[name], writer[name])):
                    self._refuse(at, f"{name} is narrower than before")

    def _others(self, reader: Any, writer: Any, at: str) -> None:
        for name, value in reader.items():
            if name in _JUDGED or name in _ANNOTATIONS or name.startswith("x-"):
                continue
            if name not in writer or not _is_same(writer[name], value):
                self._refuse(at, f"{name[:40]} has changed, which cannot be judged")

    def _branches(self, reader: Any, writer: Any, at: str) -> None:
        for name in ("anyOf", "oneOf"):
            if name not in reader:
                continue
            for number, branch in enumerate(writer.get(name, [writer])):
                if not any(self._takes(each, branch) for each in reader[name]):
                    self._refuse(f"{at}/{name}/{number}", "no branch takes what this one took")

    def _takes(self, reader: Any, writer: Any) -> bool:
        """Compare without keeping why."""
        kept, self.why = self.why, []
        seen, self._seen = self._seen, set(self._seen)
        try:
            return self.parts(reader, writer, "")
        finally:
            self.why, self._seen = kept, seen

    def _properties(self, reader: Any, writer: Any, at: str) -> None:
        if "object" not in _types_of(writer):
            return
        takes, gave = reader.get("properties", {}), writer.get("properties", {})
        for name in sorted(set(reader.get("required", ())) - set(writer.get("required", ()))):
            self._refuse(f"{at}/{name}", "it is required now")
        rest = reader.get("additionalProperties", True)
        for name, part in gave.items():
            self.parts(takes.get(name, rest), part, f"{at}/{name}")
        if isinstance(before := writer.get("additionalProperties"), dict):
            self.parts(rest, before, f"{at}/{VALUE}")


def _is_same(one: Any, other: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    return bool(one == other) and canonical(one) == canonical(other)


def _types_of(node: Mapping[str, Any]) -> frozenset[str]:
    types = node.get("type")
    if types is None:
        return _ALL_TYPES
    return frozenset([types] if isinstance(types, str) else types)


def _values_of(node: Mapping[str, Any]) -> set[str] | None:
    """Return the values of an enumeration as JSON; None if there is none."""
    if "const" in node:
        return {json.dumps(node["const"], sort_keys=True)}
    return {json.dumps(each, sort_keys=True) for each in node["enum"]} if "enum" in node else None


def _is_worse(worse: Callable[[Any, Any], bool], new: Any, old: Any) -> bool:
    return new != old if isinstance(new, bool) or isinstance(old, bool) else worse(new, old)

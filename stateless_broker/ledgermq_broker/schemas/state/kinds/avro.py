"""Avro schemas. The library `avro` of the Apache project reads them and compares reader with writer.

Compared: fastavro reads and writes values several times faster, but has no rule for compatibility; avro has the
project's own checker, which other registries use as well. Brokers compare a few schemas, and decode none.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ledgermq.errors import InvalidRequest
from ledgermq_broker.schemas.state.bounds import canonical, load_json
from ledgermq_broker.schemas.state.kinds.parsed import Parsed
from ledgermq_ledger.schemas.avro_names import NamedTypes, branch_name, full_name
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

KIND = "avro"
BRANCHES_MAX = 100
_PRIMITIVE = {"boolean": "bool", "int": "int", "long": "long", "float": "float", "double": "double"} | {
    "bytes": "bytes",
    "string": "string",
}
_LOGICAL = {
    ("int", "date"): "date",
    ("int", "time-millis"): "time",
    ("long", "time-micros"): "time",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "timestamp-nanos"): "timestamp",
    ("long", "local-timestamp-millis"): "local timestamp",
    ("long", "local-timestamp-micros"): "local timestamp",
    ("long", "local-timestamp-nanos"): "local timestamp",
}


def parse(text: str) -> Parsed:
    """Raises InvalidRequest."""
    import avro.errors
    import avro.schema

    value = load_json(text) if text.lstrip()[:1] in ("{", "[", '"') else text.strip()
    plain = canonical(value)
    try:
        model = avro.schema.parse(plain)
    except (avro.errors.AvroException, RecursionError, TypeError, ValueError, AttributeError, KeyError) as error:
        raise InvalidRequest(f"the Avro schema cannot be read: {str(error)[:300]}") from error
    walk = _Walk()
    walk.into(value, "", ROOT, is_root=True)
    return Parsed(KIND, text, plain, tuple(walk.found), model)


def refusals(reader: Any, writer: Any) -> list[str]:
    """Return why a reader with one schema cannot read what was written with the other; nothing if it can."""
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

    checker: Any = ReaderWriterCompatibilityChecker  # it has no types
    result = checker().get_compatibility(reader, writer)
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    return sorted(f"{text} (at {place})" for text, place in zip(result.messages, result.locations, strict=False)) or [
        "the schemas are not compatible"
    ]


class _Walk:
    """Collect the fields of a schema that the library has found right."""

    def __init__(self) -> None:
        self.found: list[Field] = []
        self._types = NamedTypes()
        self._open: Counter[str] = Counter()

    def into(self, node: Any, namespace: str, at: Field, *, is_root: bool = False) -> None:
        """Add the field `at`, whose schema is `node`, with all below it; the root only what is below."""
        if isinstance(node, list):
            self._union(node, namespace, at, is_root=is_root)
            return
        node, namespace = self._types.resolved(node, namespace)
        kind = node["type"] if isinstance(node, dict) else node
        if isinstance(kind, (dict, list)):  # {"type": {"type": …}}
            self.into(kind, namespace, at, is_root=is_root)
            return
        if kind in ("record", "error"):
            self._record(node, namespace, at, is_root=is_root)
            return
        type_ = _type_of(node, kind)
        if not (is_root and kind in ("array", "map")):
            self._add(at, type_)
        if kind == "array":
            self.into(node["items"], namespace, at.child(ELEMENT, ""))
        elif kind == "map":
            self.into(node["values"], namespace, at.child(VALUE, ""))

    def _add(self, at: Field, type_: str) -> None:
        check_count(self.found)
        self.found.append(Field(at.path, type_, at.identity, at.former))

    def _union(self, branches: list[Any], namespace: str, at: Field, *, is_root: bool) -> None:
        if len(branches) > BRANCHES_MAX:
            raise InvalidRequest(f"{at.path or 'the schema'}: a union has at most {BRANCHES_MAX} branches")
        real = [branch for branch in branches if branch != "null"]
        if len(real) == 1:
            self.into(real[0], namespace, at, is_root=is_root)
            return
        if not is_root:
            self._add(at, STRUCT)
        for branch in real:
            found, _ = self._types.resolved(branch, namespace)
            self.into(branch, namespace, at.child(branch_name(found), ""))

    def _record(self, node: Any, namespace: str, at: Field, *, is_root: bool) -> None:
        name = full_name(node["name"], node.get("namespace", namespace))
        if self._open[name] >= RECURSION_MAX:
            self._add(at, JSON)
            return
        if not is_root:
            self._add(at, STRUCT)
        self._open[name] += 1
        inner = name.rpartition(".")[0]
        for field in node["fields"]:
            self.into(field["type"], inner, at.child(field["name"], "", former=field.get("aliases", ())))
        self._open[name] -= 1


def _type_of(node: Any, kind: str) -> str:
    logical = node.get("logicalType") if isinstance(node, dict) else None
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = node.get("precision"), node.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and precision <= 38:
            return f"decimal({precision},{scale})"
    if (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, str(logical)]
    return {"array": LIST, "map": MAP, "enum": "string", "fixed": "bytes", "null": "null"}.get(kind) or _PRIMITIVE[kind]

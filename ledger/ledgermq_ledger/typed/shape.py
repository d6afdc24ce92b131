"""The struct `value_typed`: the columns that all versions of a subject make, with the registry's field ids. Pure.

A column is made as wide as its type may ever become (`int` as `long`, `float` as `double`, a decimal with 38 digits):
no later schema changes the type of a column in a file or in a table. Readers that go by names need one column for each
name, so within a struct a name belongs forever to the field that had it first; another field gets it with `_2` behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ledgermq_ledger.schemas.fields import ELEMENT, JSON, LIST, MAP, STRUCT, VALUE, NumberedField
from ledgermq_ledger.schemas.records import Schema

VALUE_TYPED, VALUE_ERROR = "value_typed", "value_error"
TYPED_ID, ERROR_ID = 100, 14
ROOT = 0
"""In place of a field's id: the value itself."""
FIELD_ID = b"PARQUET:field_id"
DIGITS_MAX = 38
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)\Z")
_NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")
_TYPES: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "time": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "local timestamp": pa.timestamp("us", tz="UTC"),
    "null": pa.string(),
    JSON: pa.string(),
}
"""Delta and older Spark have no type for a time of day: it is microseconds since midnight."""


@dataclass(frozen=True, slots=True)
class Node:
    """A field. `source`: its name in values, "[]" the element of a list, "{}" the value of a map, "" the value itself.
    `name`: of its column within the struct that holds it.
    """

    id: int
    source: str
    name: str
    type: str
    children: tuple[Node, ...] = ()

    def child(self, source: str) -> Node | None:
        return next((each for each in self.children if each.source == source), None)

    @property
    def path(self) -> str:
        return self.source or "value"


@dataclass(frozen=True, slots=True)
class Shape:
    """`root`: of the struct that files get; None if no version has a column. `versions`: by version, the fields that
    its values have, with the names of their columns; None where they are no record, so that it has no columns.
    """

    root: Node | None
    versions: Mapping[int, Node | None]

    @property
    def type(self) -> pa.DataType | None:
        return None if self.root is None else arrow_type(self.root)

    @property
    def fields(self) -> list[pa.Field]:
        """The columns of a file, with their ids."""
        found = [numbered_field(ERROR_ID, VALUE_ERROR, pa.string())]
        kind = self.type
        return found if kind is None else [numbered_field(TYPED_ID, VALUE_TYPED, kind), *found]


def numbered_field(id_: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={FIELD_ID: b"%d" % id_})


def arrow_type(node: Node) -> pa.DataType | None:
    """Return the type of a column; None if there is nothing to hold: a struct without fields cannot be stored."""
    if node.type == STRUCT:
        fields = [(each, arrow_type(each)) for each in node.children]
        known = [numbered_field(each.id, each.name, kind) for each, kind in fields if kind is not None]
        return pa.struct(known) if known else None
    if node.type in (LIST, MAP):
        inner = arrow_type(node.children[0]) if node.children else None
        if inner is None:
            return None
        if node.type == LIST:
            return pa.list_(numbered_field(node.children[0].id, "element", inner))
        return pa.map_(pa.string(), numbered_field(node.children[0].id, "value", inner))
    if digits := _DECIMAL.match(node.type):
        scale = int(digits[2])
        return pa.decimal128(DIGITS_MAX, scale) if 0 <= scale <= DIGITS_MAX else pa.string()
    return _TYPES[node.type]


def parts_of(path: str) -> list[str]:
    """Return the names in a field's path."""
    return [_unescaped(part) for part in path.split("/")[1:]]


def _unescaped(part: str) -> str:
    if part in (ELEMENT, VALUE):
        return part
    return part.replace("~3", "{").replace("~2", "[").replace("~1", "/").replace("~0", "~")


@dataclass(slots=True)
class _Known:
    """What the versions so far say of a field."""

    parent: int
    source: str
    name: str
    type: str
    living: bool = True


@dataclass(slots=True)
class _Fold:
    fields: dict[int, _Known] = field(default_factory=dict)
    owners: dict[tuple[int, str], int] = field(default_factory=dict)
    """Of names, without regard to capitals, which many readers ignore."""

    def take(self, fields: Sequence[NumberedField]) -> Node | None:
        """Add a version; return its tree, None if its values are no records."""
        ids: dict[str, int] = {"": ROOT}
        for each in fields:
            if not each.removed:
                ids[each.path] = each.id
        if len(ids) == 1 + sum(not each.removed for each in fields) and all(_is_in_a_record(path) for path in ids):
            for known in self.fields.values():
                known.living = False
            living = [each for each in fields if not each.removed]
            for each in sorted(living, key=lambda each: each.path.count("/")):
                parent = ids.get(each.path.rpartition("/")[0], ROOT)
                self._field(each, parent)
            return self.tree(living_only=True)
        return None

    def _field(self, each: NumberedField, parent: int) -> None:
        source = _unescaped(each.path.rpartition("/")[2])
        self.fields[each.id] = _Known(parent, source, self._name(parent, source, each.id), each.type)

    def _name(self, parent: int, source: str, id_: int) -> str:
        wanted = _NOT_IN_NAMES.sub("_", source) or "_"
        name, number = wanted, 1
        while self.owners.setdefault((parent, name.casefold()), id_) != id_:
            number += 1
            name = f"{wanted}_{number}"
        return name

    def tree(self, *, living_only: bool) -> Node | None:
        below: dict[int, list[int]] = {}
        for id_, known in sorted(self.fields.items()):
            if known.living or not living_only:
                below.setdefault(known.parent, []).append(id_)

        def node(id_: int) -> Node:
            known = self.fields[id_]
            children = [node(each) for each in below.get(id_, ())]
            if known.type in (LIST, MAP):
                children = sorted(children, key=lambda each: (self.fields[each.id].living, each.id))[-1:]
            elif known.type != STRUCT:
                children = []
            return Node(id_, known.source, known.name, known.type, tuple(children))

        found = tuple(node(id_) for id_ in below.get(ROOT, ()))
        return Node(ROOT, "", "", STRUCT, found) if found else None


def _is_in_a_record(path: str) -> bool:
    return path == "" or parts_of(path)[0] not in (ELEMENT, VALUE)


def shape_of(versions: Iterable[Schema]) -> Shape:
    """Return the columns of a subject. `versions`: all that it had, deleted ones, too."""
    fold, trees = _Fold(), dict[int, Node | None]()
    for schema in sorted(versions, key=lambda each: each.version):
        trees[schema.version] = fold.take(schema.fields)
    root = fold.tree(living_only=False)
    return Shape(root if root is not None and arrow_type(root) is not None else None, trees)


def union_type(one: Any, other: Any) -> Any:
    """Return a struct with the columns of both, those of `one` first; None if one name has two types."""
    fields = {each.name: each for each in one}
    for each in other:
        known = fields.get(each.name)
        if known is None:
            fields[each.name] = each
        elif pa.types.is_struct(known.type) and pa.types.is_struct(each.type):
            inner = union_type(known.type, each.type)
            if inner is None:
                return None
            fields[each.name] = known.with_type(inner)
        elif known.type != each.type:
            return None
    return pa.struct(list(fields.values()))

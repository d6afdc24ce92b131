"""Avro values into columns, by pyruhvro, if it is installed.

It is lenient where the rows are not: it passes over bytes behind a value, and numbers of more than 32 bits wrap around.
So each value gets a text behind it that no producer can know, which has to be read back as it is, and an `int` is read
as a `long` and checked. Compared: polars reads a block of values as fast, but is far larger and has no maps
either. fastavro makes Python objects, which takes ten times as long.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.sources import Sources
from ledgermq_ledger.schemas.avro_names import NamedTypes
from ledgermq_ledger.schemas.fields import ELEMENT, JSON
from ledgermq_ledger.typed.chunk import Columns, Work
from ledgermq_ledger.typed.many.layout import laid_out
from ledgermq_ledger.typed.shape import Node

compute: Any = pc
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
_AS_THEY_ARE = ("boolean", "float", "double", "string")
_LONGS = {"": 1, "timestamp-micros": 1, "local-timestamp-micros": 1, "time-micros": 1}
_MILLIS = ("timestamp-millis", "local-timestamp-millis")


class _Unfit(Exception):
    """pyruhvro does not read a type, or reads it otherwise than the rows do."""


def columns_of(work: Work) -> Columns | None:
    """Return the decoder; None without pyruhvro, and for schemas with types that it does not read."""
    try:
        read = import_module("pyruhvro").deserialize_array
    except ImportError:
        return None
    text, sources = work.text, Sources()
    try:
        schema = json.loads(text) if text.lstrip()[:1] in ("{", "[", '"') else text.strip()
        plain = _Plain()
        value = plain.of(schema, "", work.root)
    except _Unfit:
        return None
    names = [{"name": "v", "type": value}, {"name": "end", "type": "string"}]
    wrapped = json.dumps({"type": "record", "name": "whole", "fields": names})

    def columns(values: pa.Array) -> pa.Array:
        token = sources.new_id().hex()
        marked = compute.binary_join_element_wise(values, bytes([2 * len(token)]) + token.encode(), b"")
        found = read(marked.to_pylist(), wrapped)
        is_whole = compute.all(compute.equal(found.column(1), token)).as_py()
        if found.num_rows != len(values) or is_whole is False:
            raise ValueError("a value does not end where it should")
        return laid_out(plain.converted(found.column(0), work.root), work.root, work.wanted)

    return columns


class _Plain:
    """Makes the schema by which pyruhvro reads: without names and logical types, each `int` as a `long`."""

    def __init__(self) -> None:
        self._types = NamedTypes()
        self._records = 0
        self._ints: set[int] = set()
        self._millis: set[int] = set()

    def of(self, node: Any, namespace: str, place: Node | None) -> Any:
        """Raises _Unfit."""
        if place is None or place.type == JSON:
            raise _Unfit
        if isinstance(node, list):
            real = [branch for branch in node if branch != "null"]
            if len(real) != 1 or len(node) > 2 or place.source == "":
                raise _Unfit
            return [branch if branch == "null" else self.of(branch, namespace, place) for branch in node]
        node, namespace = self._types.resolved(node, namespace)
        kind = node["type"] if isinstance(node, dict) else node
        if isinstance(kind, (dict, list)):
            return self.of(kind, namespace, place)
        if kind == "record":
            return self._record(node, namespace, place)
        if kind == "array":
            return {"type": "array", "items": self.of(node["items"], namespace, place.child(ELEMENT))}
        if kind == "enum":
            self._records += 1
            return {"type": "enum", "name": f"n{self._records}", "symbols": node["symbols"]}
        return self._scalar(kind, str(node.get("logicalType") or "") if isinstance(node, dict) else "", place)

    def _record(self, node: Any, namespace: str, place: Node) -> Any:
        self._records += 1
        name = f"n{self._records}"
        fields = [
            {"name": each["name"], "type": self.of(each["type"], namespace, place.child(each["name"]))}
            for each in node["fields"]
        ]
        if not fields:
            raise _Unfit
        return {"type": "record", "name": name, "fields": fields}

    def _scalar(self, kind: str, logical: str, place: Node) -> str:
        if kind in _AS_THEY_ARE:
            return kind
        if kind == "int" and logical in ("", "date"):
            self._ints.add(place.id)
            return "long"
        if kind == "long" and logical in _LONGS:
            return "long"
        if kind == "long" and logical in _MILLIS:
            self._millis.add(place.id)
            return "long"
        raise _Unfit

    def converted(self, found: pa.Array, node: Node) -> pa.Array:
        """Return what was read with its numbers as the rows have them. Raises ValueError, ArrowException."""
        kind = found.type
        if node.id in self._ints:
            bounds = compute.min_max(found).as_py()
            if bounds["min"] is not None and not INT32_MIN <= bounds["min"] <= bounds["max"] <= INT32_MAX:
                raise ValueError("a number does not fit into 32 bits")
            return found.cast(pa.int32()) if node.type == "date" else found
        if node.id in self._millis:
            return compute.multiply_checked(found, 1000)
        if pa.types.is_struct(kind):
            children = {child.source: child for child in node.children}
            arrays = [self.converted(found.field(at), children[kind.field(at).name]) for at in range(kind.num_fields)]
            names = [kind.field(at).name for at in range(kind.num_fields)]
            return pa.StructArray.from_arrays(arrays, names, mask=found.is_null())
        if pa.types.is_list(kind) and (self._ints or self._millis):
            found = found if found.offset == 0 else pa.concat_arrays([found, found[:0]])
            items = self.converted(found.values, node.children[0])
            return pa.ListArray.from_arrays(found.offsets, items, mask=found.is_null())
        return found

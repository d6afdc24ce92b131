"""The schema of a Delta table, made of an Arrow schema. Pure."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

_PRIMITIVES = {
    pa.binary(): "binary",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def schema_string(schema: pa.Schema) -> str:
    """Return the schema as the table's metadata names it: all columns may be NULL, because files of former
    releases lack some. Raises AssertionError for a type that no file of LedgerMQ has.
    """
    return json.dumps(_struct(list(schema)), separators=(",", ":"))


def _struct(fields: list[pa.Field]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": field.name, "type": _type(field.type), "nullable": True, "metadata": {}} for field in fields
        ],
    }


def _type(kind: pa.DataType) -> str | dict[str, Any]:
    if pa.types.is_struct(kind):
        return _struct([kind.field(i) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _type(kind.value_type), "containsNull": True}
    if kind not in _PRIMITIVES:
        raise AssertionError(f"Delta has no type for {kind}")
    return _PRIMITIVES[kind]

"""Subjects with schemas, and values of them, for tests of typed columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import fastavro
import fastavro.schema
import pyarrow as pa

from ledgermq_broker.schemas.state.registry import Registry, judge, parsed, put, registry_of
from ledgermq_ledger.schemas.records import Schema
from ledgermq_ledger.topics.topic import METADATA
from ledgermq_ledger.typed.children import Decoders
from ledgermq_ledger.typed.column import Subject, TypedColumns
from tests.worlds.roots import Root

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def schemas_of(*texts: Any, kind: str = "avro", subject: str = "t-value", mode: str = "none") -> list[Schema]:
    """Return the versions of a subject that has these schemas, as a registry makes them."""
    records: dict[bytes, tuple[int, bytes]] = {}
    found = []
    for text in texts:
        registry: Registry = registry_of(records)
        wanted = parsed(kind, text if isinstance(text, str) else json.dumps(text))
        judge(registry, subject, wanted, mode)
        schema, changes = put(registry, subject, wanted, mode, 0, "")
        assert schema is not None
        for key, value in changes:
            assert value is not None
            records[key] = (len(records), value)
        found.append(schema)
    return found


async def register(root: Root, text: Any, kind: str = "avro", subject: str = "t-value") -> Schema:
    """Write a schema's records into a root, as a controller does."""
    registry = registry_of((await root.catalog()).others)
    wanted = parsed(kind, text if isinstance(text, str) else json.dumps(text))
    judge(registry, subject, wanted, "none")
    schema, changes = put(registry, subject, wanted, "none", 0, "")
    assert schema is not None
    for key, value in changes:
        await root.put_internal(METADATA, key, value)
    return schema


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    """Return the Avro schema of a record."""
    return {"type": "record", "name": name, "fields": [{"name": name, "type": kind} for name, kind in fields]}


def avro(schema: Any, value: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.schema.parse_schema(schema), value)
    return out.getvalue()


def framed(id_: int, body: bytes) -> bytes:
    return b"\0" + id_.to_bytes(4, "big") + body


def decoded(
    versions: Sequence[Schema],
    values: Sequence[bytes | None],
    framing: str = "confluent",
    headers: Sequence[Any] | None = None,
    decoders: Decoders | None = None,
    version: int = 0,
) -> list[tuple[Any, str | None]]:
    """Return what files would have of these values: (value_typed, value_error)."""
    columns = TypedColumns(Subject("t-value", framing, version, versions), decoders or Decoders())
    said = pa.array(headers if headers is not None else [None] * len(values), HEADERS_TYPE)
    typed, errors = columns.decoded(pa.array(values, pa.binary()), said)
    errors.validate(full=True)
    if typed is None:
        return [(None, error) for error in errors.to_pylist()]
    typed.validate(full=True)
    return list(zip(typed.to_pylist(), errors.to_pylist(), strict=True))

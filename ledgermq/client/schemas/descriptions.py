"""Schemas and subjects as values, and the texts of schemas as programs have them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message

from ledgermq.errors import InvalidRequest

AVRO, JSON, PROTOBUF = "avro", "json", "protobuf"


@dataclass(frozen=True, slots=True)
class SchemaField:
    """A field of a schema as a table has it. `id`: of the column, in the whole cluster. `path`: names with slashes
    between; `[]` is the element of a list, `{}` the value of a map. `removed`: the version lacks it.
    """

    id: int
    path: str
    type: str
    removed: bool = False


@dataclass(frozen=True, slots=True)
class SchemaDescription:
    """A version of a subject. `id`: of its text, in the whole cluster; values are framed with it. `kind`: avro, json or
    protobuf. `text`: of Protobuf the FileDescriptorProto in base64; "" in lists, and in the answer of `put`, as are
    `fields`. `subjects`: of a description by id, those that have it. `deleted`: it is hidden from lists.
    """

    id: int
    subject: str
    version: int
    kind: str
    text: str = ""
    fields: Sequence[SchemaField] = ()
    created: datetime | None = None
    created_by: str = ""
    deleted: bool = False
    compatibility: str = ""
    subjects: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SubjectDescription:
    """A subject with its versions, ascending. `compatibility`: of its next version with those before. `trouble`: why
    the brokers cannot read a record of it.
    """

    subject: str
    compatibility: str
    versions: Sequence[SchemaDescription]
    trouble: str = ""


def schema_text(schema: Any, kind: str) -> tuple[str, str]:
    """Return kind and text of a schema as programs have it. Raises InvalidRequest."""
    if isinstance(schema, type) and issubclass(schema, Message):
        schema = schema.DESCRIPTOR.file
    if isinstance(schema, FileDescriptor):
        return PROTOBUF, base64.b64encode(schema.serialized_pb).decode()
    if kind not in (AVRO, JSON, PROTOBUF):
        raise InvalidRequest(f"say which kind of schema it is: avro, json or protobuf, not {kind[:40]!r}")
    if isinstance(schema, str):
        return kind, schema
    if isinstance(schema, (Mapping, list)) and kind != PROTOBUF:
        return kind, json.dumps(schema)
    raise InvalidRequest(
        f"a schema is text, a dictionary, or a class that protoc has generated, not a {type(schema).__name__}"
    )

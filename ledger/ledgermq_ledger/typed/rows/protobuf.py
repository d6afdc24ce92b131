"""Rows of Protobuf values: protobuf itself reads them. A field without presence has its default; others are NULL if the
value does not have them. An enum is the name of its value, or its number where the schema has no name for it.
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError, Message

from ledgermq_ledger.schemas.fields import ELEMENT, JSON, LIST, MAP, VALUE
from ledgermq_ledger.schemas.known_protos import known_file
from ledgermq_ledger.typed.rows.bounds import BadValue, ReadRow, check_int64, text_of
from ledgermq_ledger.typed.shape import Node

_TIMESTAMP = "google.protobuf.Timestamp"


def message_class(text: str) -> type[Message]:
    """Return the class of the first message of a schema, as a separate pool knows it."""
    proto = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text))
    pool = descriptor_pool.DescriptorPool()
    for name in proto.dependency:
        pool.AddSerializedFile(known_file(name))
    pool.AddSerializedFile(proto.SerializeToString(deterministic=True))
    file = pool.FindFileByName(proto.name)
    found: type[Message] = message_factory.GetMessageClass(file.message_types_by_name[proto.message_type[0].name])
    return found


def reader_of(text: str, root: Node) -> ReadRow:
    """Return what reads a value of this schema's first message. `root`: the fields of its values."""
    kind = message_class(text)

    def row(data: bytes) -> dict[str, Any] | None:
        try:
            value = kind.FromString(data)
        except DecodeError:
            raise BadValue(f"it is no {kind.DESCRIPTOR.full_name}") from None
        return _message(value, root)

    return row


def _message(value: Any, place: Node) -> dict[str, Any]:
    fields, found = value.DESCRIPTOR.fields_by_name, {}
    for child in place.children:
        field = fields.get(child.source)
        if field is not None:
            try:
                found[child.name] = _field(value, field, child)
            except BadValue as error:
                raise error.within(child.source) from None
    return found


def _field(value: Any, field: Any, place: Node) -> Any:
    if field.is_repeated:
        inner = place.child(VALUE if place.type == MAP else ELEMENT)
        if inner is None or place.type not in (LIST, MAP):
            return None
        held = getattr(value, field.name)
        if place.type == MAP:
            of_values = field.message_type.fields_by_name["value"]
            return [(_key(key), _single(held[key], of_values, inner)) for key in held]
        return [_single(each, field, inner) for each in held]
    if field.has_presence and not value.HasField(field.name):
        return None
    return _single(getattr(value, field.name), field, place)


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _single(value: Any, field: Any, place: Node) -> Any:
    if field.message_type is not None:
        return _inner(value, field.message_type.full_name, place)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return Decimal(value) if place.type.startswith("decimal") else value


def _inner(value: Any, name: str, place: Node) -> Any:
    if place.type == JSON:
        try:
            return text_of(json.loads(json_format.MessageToJson(value, preserving_proto_field_name=True)))
        except (json_format.Error, ValueError, TypeError) as error:
            raise BadValue(f"it cannot be said in JSON: {error}") from None
    if name == _TIMESTAMP:
        return check_int64(value.seconds * 1_000_000 + value.nanos // 1000)
    if name.startswith("google.protobuf."):
        return Decimal(value.value) if place.type.startswith("decimal") else value.value
    return _message(value, place)

"""Protobuf schemas: a file descriptor, in base64, as Confluent's serializers send it. protobuf itself reads it.

Compared: proto-schema-parser reads the text of .proto files, in Python; protoc (grpcio-tools) is the reference for
it, and makes descriptors. Brokers take descriptors only, for which protobuf is there, and programs make them.
The first message of a file is the one of values.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from ledgermq.errors import InvalidRequest
from ledgermq_broker.schemas.state.bounds import DEPTH_MAX, check_size
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
from ledgermq_ledger.schemas.known_protos import KNOWN

KIND = "protobuf"
_TYPES = {
    "double": "double",
    "float": "float",
    "int64": "long",
    "uint64": "decimal(20,0)",
    "int32": "int",
    "fixed64": "decimal(20,0)",
    "fixed32": "long",
    "bool": "bool",
    "string": "string",
    "bytes": "bytes",
    "uint32": "long",
    "enum": "string",
    "sfixed32": "int",
    "sfixed64": "long",
    "sint32": "int",
    "sint64": "long",
}
_SAME_ON_THE_WIRE = (
    frozenset({"int32", "uint32", "int64", "uint64", "bool", "enum"}),
    frozenset({"sint32", "sint64"}),
    frozenset({"fixed32", "sfixed32"}),
    frozenset({"fixed64", "sfixed64"}),
)
_KIND_NAMES = {
    value.number: value.name.removeprefix("TYPE_").lower()
    for value in descriptor_pb2.FieldDescriptorProto.DESCRIPTOR.enum_types_by_name["Type"].values
}
_WRAPPED = {
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.DoubleValue": "double",
    "google.protobuf.FloatValue": "float",
    "google.protobuf.Int64Value": "long",
    "google.protobuf.UInt64Value": "decimal(20,0)",
    "google.protobuf.Int32Value": "int",
    "google.protobuf.UInt32Value": "long",
    "google.protobuf.BoolValue": "bool",
    "google.protobuf.StringValue": "string",
    "google.protobuf.BytesValue": "bytes",
}


def parse(text: str) -> Parsed:
    """Raises InvalidRequest."""
    check_size(text)
    proto = descriptor_pb2.FileDescriptorProto()
    try:
        proto.ParseFromString(base64.b64decode("".join(text.split()), validate=True))
    except (DecodeError, binascii.Error, ValueError) as error:
        raise InvalidRequest(f"a Protobuf schema is a FileDescriptorProto in base64: {str(error)[:200]}") from error
    proto.ClearField("source_code_info")
    if not proto.message_type:
        raise InvalidRequest("the Protobuf schema has no message")
    for message in proto.message_type:
        _check_depth(message, 0)
    pool = descriptor_pool.DescriptorPool()
    for name in proto.dependency:
        _add_known(pool, name)
    try:
        pool.AddSerializedFile(proto.SerializeToString(deterministic=True))
        file = pool.FindFileByName(proto.name)
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidRequest(f"the Protobuf schema is not right: {str(error)[:300]}") from error
    walk = _Walk()
    walk.message(file.message_types_by_name[proto.message_type[0].name], ROOT)
    plain = base64.b64encode(proto.SerializeToString(deterministic=True)).decode()
    return Parsed(KIND, text, plain, tuple(walk.found), _messages_of(proto, pool))


def _add_known(pool: Any, name: str) -> None:
    if name not in KNOWN:
        raise InvalidRequest(
            f"the schema imports {name[:100]!r}; only files of google/protobuf can be imported: write it into one file"
        )
    pool.AddSerializedFile(KNOWN[name])


def _check_depth(message: Any, depth: int) -> None:
    if depth > DEPTH_MAX // 4:
        raise InvalidRequest(f"messages of the schema are more than {DEPTH_MAX // 4} deep within one another")
    for nested in message.nested_type:
        _check_depth(nested, depth + 1)


def _messages_of(proto: Any, pool: Any) -> dict[str, Any]:
    """Return the messages of a file by their full names; the pool stays, because descriptors live in it."""

    def named(messages: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for message in messages:
            name = f"{prefix}{message.name}"
            yield name, message
            yield from named(message.nested_type, f"{name}.")

    return dict(named(proto.message_type, f"{proto.package}." if proto.package else ""))


class _Walk:
    def __init__(self) -> None:
        self.found: list[Field] = []
        self._open: Counter[str] = Counter()

    def message(self, message: Any, at: Field) -> None:
        """Add the fields of a message. A field keeps its id by its number, whatever its name becomes."""
        self._open[message.full_name] += 1
        for field in message.fields:
            place = at.child(field.name, "", f"#{field.number}")
            if field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry:
                self._add(place, MAP)
                self._single(field.message_type.fields_by_name["value"], place.child(VALUE, ""))
            elif field.is_repeated:
                self._add(place, LIST)
                self._single(field, place.child(ELEMENT, ""))
            else:
                self._single(field, place)
        self._open[message.full_name] -= 1

    def _single(self, field: Any, place: Field) -> None:
        inner = field.message_type
        if inner is None:
            self._add(place, _TYPES[_KIND_NAMES[field.type]])
        elif inner.full_name in _WRAPPED:
            self._add(place, _WRAPPED[inner.full_name])
        elif inner.file.name in KNOWN or self._open[inner.full_name] >= RECURSION_MAX:
            self._add(place, JSON)
        else:
            self._add(place, STRUCT)
            self.message(inner, place)

    def _add(self, at: Field, type_: str) -> None:
        check_count(self.found)
        self.found.append(Field(at.path, type_, at.identity, at.former))


def refusals(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    """Return why a reader with one schema misreads what was written with the other; nothing if it does not."""
    why = []
    for name, wrote in writer.items():
        reads = reader.get(name)
        if reads is None:
            why.append(f"{name}: the message is gone")
            continue
        known = {field.number: field for field in reads.field}
        for field in wrote.field:
            if field.number in known:
                why += [f"{name}.{field.name}: {text}" for text in _misreads(known[field.number], field)]
        numbers = {field.number for field in wrote.field}
        required = descriptor_pb2.FieldDescriptorProto.LABEL_REQUIRED
        why += [
            f"{name}.{field.name}: it is required now"
            for field in reads.field
            if field.label == required and field.number not in numbers
        ]
    return why


def _misreads(reads: Any, wrote: Any) -> list[str]:
    new, old = _KIND_NAMES[reads.type], _KIND_NAMES[wrote.type]
    repeated = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    found = []
    if (reads.label == repeated) != (wrote.label == repeated):
        found.append(f"number {wrote.number} was a list, or is one now")
    is_same = new == old or any({new, old} <= group for group in _SAME_ON_THE_WIRE) or (new, old) == ("bytes", "string")
    if not is_same:
        found.append(f"number {wrote.number} was {old}, and is {new}")
    elif new in ("message", "group") and reads.type_name != wrote.type_name:
        found.append(
            f"number {wrote.number} was of {wrote.type_name.lstrip('.')}, and is of {reads.type_name.lstrip('.')}"
        )
    return found

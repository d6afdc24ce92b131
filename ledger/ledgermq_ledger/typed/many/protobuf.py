"""Protobuf values into columns, by ptars, if it is installed.

Messages with enums, maps, messages within themselves or well-known types, and those of proto2, are left to the rows.
Compared: protobuf itself makes Python objects, which takes ten times as long.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2

from ledgermq_ledger.schemas.fields import LIST, STRUCT
from ledgermq_ledger.typed.chunk import Columns, Work
from ledgermq_ledger.typed.many.layout import laid_out
from ledgermq_ledger.typed.rows.protobuf import message_class
from ledgermq_ledger.typed.shape import Node

_FIT = ("bool", "int", "long", "float", "double", "string", "bytes")


def columns_of(work: Work) -> Columns | None:
    """Return the decoder; None without ptars, and for messages with types that it makes otherwise than the rows do."""
    try:
        ptars = import_module("ptars")
    except ImportError:
        return None
    message = message_class(work.text).DESCRIPTOR
    if not _fits(message, work.root):
        return None
    pool = ptars.HandlerPool([message.file], config=ptars.PtarsConfig(timestamp_unit="us"))
    handler = pool.get_for_message(message)

    def columns(values: pa.Array) -> pa.Array:
        found = handler.array_to_record_batch(values)
        return laid_out(found.to_struct_array(), work.root, work.wanted)

    return columns


def _fits(message: Any, place: Node) -> bool:
    """Return whether every field of a message is made as the rows make it."""
    known = {child.source: child for child in place.children}
    if not _is_proto3(message) or len(known) != len(message.fields):
        return False
    return all(_field_fits(field, known[field.name]) for field in message.fields)


def _is_proto3(message: Any) -> bool:
    return descriptor_pb2.FileDescriptorProto.FromString(message.file.serialized_pb).syntax == "proto3"


def _field_fits(field: Any, place: Node) -> bool:
    if place.type == LIST:
        return bool(place.children) and _field_fits(field, place.children[0])
    if field.enum_type is not None:
        return False
    if field.message_type is not None:
        return place.type == STRUCT and _fits(field.message_type, place)
    return place.type in _FIT or place.type == "decimal(20,0)"

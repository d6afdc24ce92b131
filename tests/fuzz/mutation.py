"""How a valid input becomes a hostile one: edits of its bytes, or of the fields of a protobuf
message under a checksum that fits.
"""

from __future__ import annotations

import random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ledgermq_ledger.log.chains.envelope import ObjectKind, seal
from tests.worlds.batches import mutate

M = TypeVar("M", bound=Message)

_UNSIGNED = (0, 1, 2, 3, 7, 100, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_SIGNED = (0, 1, -1, 100, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63))
_BITS = {
    FieldDescriptor.TYPE_UINT32: (_UNSIGNED, 32),
    FieldDescriptor.TYPE_FIXED32: (_UNSIGNED, 32),
    FieldDescriptor.TYPE_UINT64: (_UNSIGNED, 64),
    FieldDescriptor.TYPE_FIXED64: (_UNSIGNED, 64),
    FieldDescriptor.TYPE_INT32: (_SIGNED, 31),
    FieldDescriptor.TYPE_INT64: (_SIGNED, 63),
    FieldDescriptor.TYPE_ENUM: (_SIGNED, 31),
}


_TYPICAL = {FieldDescriptor.TYPE_STRING: "kept", FieldDescriptor.TYPE_BYTES: b"i" * 16, FieldDescriptor.TYPE_BOOL: True}


def filled(kind: type[M]) -> M:
    """A message with every field set, once, to something usual, at all depths."""
    message = kind()
    _fill(message)
    return message


def _fill(message: Message) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of_text = _map_value(field).type == FieldDescriptor.TYPE_STRING
            getattr(message, field.name)["retention.ms" if of_text else "requests"] = "1000" if of_text else 1000
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            _fill(inner.add() if field.is_repeated else inner)
        elif field.is_repeated:
            getattr(message, field.name).append(_TYPICAL.get(field.type, 1))
        else:
            setattr(message, field.name, _TYPICAL.get(field.type, 1))


def _map_value(field: FieldDescriptor) -> FieldDescriptor:
    return field.message_type.fields_by_name["value"]


def mutate_fields(rng: random.Random, message: Message) -> None:
    """One to three fields, at any depth: another value, gone, there twice, or in another order."""
    for _ in range(rng.choice((1, 1, 2, 3)) if message.DESCRIPTOR.fields else 0):
        inner, field = _pick(rng, message)
        if field.is_repeated:
            _mutate_repeated(rng, inner, field)
        elif field.message_type is not None:
            inner.ClearField(field.name)
        else:
            setattr(inner, field.name, _value(rng, field))


def _pick(rng: random.Random, message: Message) -> tuple[Message, FieldDescriptor]:
    while True:
        field = rng.choice(message.DESCRIPTOR.fields)
        inner = getattr(message, field.name)
        if field.message_type is None or field.message_type.GetOptions().map_entry or rng.random() < 0.2:
            return message, field
        if field.is_repeated:
            if not inner:
                return message, field
            inner = rng.choice(inner)
        message = inner


def _mutate_repeated(rng: random.Random, message: Message, field: FieldDescriptor) -> None:
    values = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = _map_value(field)
        if value.type == FieldDescriptor.TYPE_STRING:
            values[rng.choice(("retention.ms", "bundles", ""))] = rng.choice(("", "x", "-1", "9" * 30))
        else:
            values[rng.choice(("requests", "bytes_in", ""))] = _value(rng, value)
    elif not values:
        values.add() if field.message_type is not None else values.append(_value(rng, field))
    elif rng.random() < 0.4:
        values.append(values[rng.randrange(len(values))])
    elif rng.random() < 0.5:
        del values[rng.randrange(len(values))]
    else:
        kept = list(values)
        rng.shuffle(kept)
        del values[:]
        values.extend(kept)


def _value(rng: random.Random, field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(("", "x", "..", "a/b", "\0", "ä" * 300, "parquet/x"))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 16, 17)))
    edges, bits = _BITS[field.type]
    value = rng.choice(edges)
    return max(-(2**bits), min(value, 2**bits - 1))


def mutate_sealed(rng: random.Random, kind: ObjectKind, message: Message, data: bytes) -> bytes:
    """Half of them with a checksum that fits: what a bug of ours, not the disk, would have written."""
    if rng.random() < 0.5:
        return mutate(rng, data, data)
    copy = type(message)()
    copy.CopyFrom(message)
    mutate_fields(rng, copy)
    return seal(kind, copy)

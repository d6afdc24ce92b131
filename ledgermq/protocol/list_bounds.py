"""Bound the lists of requests: the option `items_max` of each repeated field in the .proto says how many
entries a request may have.

A broker judges a request by this rule before it looks at any entry. So one rule holds for every method,
and a long list costs nothing but its bytes. A test walks all requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb


@dataclass(frozen=True, slots=True)
class Checked:
    """A field to look at. `items_max`: 0 for one message. `inner`: fields of each entry, if it has any."""

    name: str
    items_max: int
    inner: tuple[Checked, ...]


def check_lists(message: Message) -> None:
    """Raise InvalidRequest if a repeated field anywhere in the request has more entries than it may."""
    fields = _checked(message.DESCRIPTOR)
    if fields:
        _check(message, fields)


def items_max_of(field: FieldDescriptor) -> int:
    """Return how many entries a request may have in the field; 0: the .proto does not say it."""
    found: int = field.GetOptions().Extensions[pb.items_max]  # type: ignore[index]  # the stubs know it as a field
    return found


def _check(message: Any, fields: tuple[Checked, ...]) -> None:
    for field in fields:
        if not field.items_max:
            if message.HasField(field.name):
                _check(getattr(message, field.name), field.inner)
            continue
        entries = getattr(message, field.name)
        if len(entries) > field.items_max:
            raise InvalidRequest(
                f"{message.DESCRIPTOR.name}.{field.name} has {len(entries)} entries; at most {field.items_max} are"
                " allowed in one request: send several"
            )
        if field.inner:
            for entry in entries:
                _check(entry, field.inner)


@cache
def _checked(kind: Descriptor) -> tuple[Checked, ...]:
    """Return the fields of a message that are lists or hold lists. Requests are trees."""
    found = []
    for field in kind.fields:
        inner = () if field.message_type is None or _is_map(field) else _checked(field.message_type)
        assert not field.is_repeated or items_max_of(field), f"{field.full_name} needs the option items_max"
        if field.is_repeated or inner:
            found.append(Checked(field.name, items_max_of(field) if field.is_repeated else 0, inner))
    return tuple(found)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)

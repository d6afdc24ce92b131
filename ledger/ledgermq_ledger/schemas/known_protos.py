"""The files of google/protobuf that a Protobuf schema may import. Pure."""

from __future__ import annotations

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

KNOWN: dict[str, bytes] = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
}


def known_file(name: str) -> bytes:
    """Return the descriptor of a file. Raises KeyError."""
    return KNOWN[name]

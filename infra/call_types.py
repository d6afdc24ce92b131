"""Write the types of the calls of a service from its descriptor: `calls/__init__.pyi` beside the .proto."""

from __future__ import annotations

import re

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto

HEAD = """\
# Generated from {proto} by `make proto`: do not edit. The comments there say what each call does.
from collections.abc import AsyncIterator
from typing import Protocol

from {package} import {module} as pb
from {package}.frames import {frames}
"""


def call_types(descriptors: bytes, package: str) -> str | None:
    """Return the text of `calls/__init__.pyi`; None if the .proto has no service.

    `descriptors`: a FileDescriptorSet, as protoc writes it. `package`: the Python package of the .proto.
    """
    file = FileDescriptorSet.FromString(descriptors).file[0]
    if not file.service:
        return None
    frames = _frames(file)
    methods = file.service[0].method
    unary = [method for method in methods if not method.server_streaming]
    streams = [method for method in methods if method.server_streaming]
    proto = file.name.rpartition("/")[2]
    head = HEAD.format(
        proto=proto,
        package=package,
        module=proto.replace(".proto", "_pb2"),
        frames=", ".join(sorted(set(frames.values()))),
    )
    return "\n".join(
        (
            head,
            "class UnaryApi(Protocol):",
            *(f"    async def {_signature(method, frames)}" for method in unary),
            "",
            "class StreamApi(Protocol):",
            *(f"    def {_signature(method, frames)}" for method in streams),
            "",
        )
    )


def _frames(file: FileDescriptorProto) -> dict[str, str]:
    """Return the type in Python of each message that is a frame: it has a header and a payload, and nothing else."""
    return {
        message.name: re.sub("Request$|Response$", "Frame", message.name)
        for message in file.message_type
        if [field.name for field in message.field] == ["header", "payload"]
    }


def _signature(method: MethodDescriptorProto, frames: dict[str, str]) -> str:
    request, response = (
        frames.get(name := type_.rpartition(".")[2], f"pb.{name}") for type_ in (method.input_type, method.output_type)
    )
    if method.client_streaming:
        request = f"AsyncIterator[{request}]"
    if method.server_streaming:
        response = f"AsyncIterator[{response}]"
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
    return f"{name}(self, {'requests' if method.client_streaming else 'request'}: {request}) -> {response}: ..."

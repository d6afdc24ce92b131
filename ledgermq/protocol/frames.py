"""Frames: a small protobuf header and payload bytes that never pass through a protobuf object.

    | 0x0A | varint: length of header  | header (ProduceHeader, StageHeader, …)             |
    | 0x12 | varint: length of payload | payload |

This is the protobuf encoding of ProduceRequest, StageRequest, FetchResponse and ShareFetchResponse with both
fields present, in order; `tests` compare it with the generated code. The decoder also accepts what other protobuf
encoders may write: an absent field, fields in the other order. No encoder writes a field twice, so
that is refused: merged headers would bypass the limit on one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from ledgermq.buffers import Buffer
from ledgermq.errors import CorruptFrame
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import FRAME_HEADER_BYTES_MAX

H = TypeVar("H", bound=Message)

_HEADER_TAG = 0x0A
_PAYLOAD_TAG = 0x12


@dataclass(frozen=True, slots=True)
class Frame(Generic[H]):
    """A frame. `payload`: consecutive pieces; their total length is the payload's. `sender`: the principal that
    takes turns with others at a broker, which sets it. `records`: of each batch, where the payload was encoded from
    them in this process, so that a broker in it need not decode them. `at_owner`: of ProduceOnce, one batch without a
    session: the broker of this process lets the owner of the partition store it, if that is another one; for its other
    ports, whose callers cannot reach the owner. None of the three is encoded.
    """

    header: H
    payload: Sequence[Buffer]
    sender: str = ""
    records: Sequence[pa.RecordBatch] = ()
    at_owner: bool = False

    @property
    def payload_bytes(self) -> int:
        return sum(len(piece) for piece in self.payload)


ProduceFrame = Frame[pb.ProduceHeader]
StageFrame = Frame[pb.StageHeader]
FetchFrame = Frame[pb.FetchHeader]
ShareFetchFrame = Frame[pb.ShareFetchHeader]


def encode_frame(frame: Frame[H]) -> bytes:
    """Encode the frame; joining it copies the payload once."""
    header = frame.header.SerializeToString()
    return b"".join(
        (b"\x0a", varint(len(header)), header, b"\x12", varint(frame.payload_bytes), *frame.payload),
    )


def decode_produce(data: Buffer) -> ProduceFrame:
    """Decode a frame. Raises CorruptFrame. The payload is a view of `data`."""
    header = pb.ProduceHeader()
    return Frame(header, _decode_into(header, data))


def decode_stage(data: Buffer) -> StageFrame:
    """Decode a frame. Raises CorruptFrame. The payload is a view of `data`."""
    header = pb.StageHeader()
    return Frame(header, _decode_into(header, data))


def decode_fetch(data: Buffer) -> FetchFrame:
    """Decode a frame. Raises CorruptFrame. The payload is a view of `data`."""
    header = pb.FetchHeader()
    return Frame(header, _decode_into(header, data))


def decode_share_fetch(data: Buffer) -> ShareFetchFrame:
    """Decode a frame. Raises CorruptFrame. The payload is a view of `data`."""
    header = pb.ShareFetchHeader()
    return Frame(header, _decode_into(header, data))


FRAMES: dict[str, Callable[[Buffer], Frame[Any]]] = {
    "ProduceRequest": decode_produce,
    "StageRequest": decode_stage,
    "FetchResponse": decode_fetch,
    "ShareFetchResponse": decode_share_fetch,
}
"""The messages that travel as frames, by their names in the .proto, and what decodes each."""


def _decode_into(header: Message, data: Buffer) -> Sequence[Buffer]:
    view = memoryview(data)
    payload = view[:0]
    seen: set[int] = set()
    at = 0
    while at < len(view):
        tag = view[at]
        if tag not in (_HEADER_TAG, _PAYLOAD_TAG):
            raise CorruptFrame(f"a frame has fields 1 and 2 only, found tag {tag:#x} at byte {at}")
        if tag in seen:
            raise CorruptFrame(f"field {tag >> 3} of the frame occurs twice")
        seen.add(tag)
        length, start = _read_varint(view, at + 1)
        at = start + length
        if at > len(view):
            raise CorruptFrame(f"field of {length} bytes ends {at - len(view)} bytes after the frame")
        if tag == _PAYLOAD_TAG:
            payload = view[start:at]
            continue
        if length > FRAME_HEADER_BYTES_MAX:
            raise CorruptFrame(f"the frame's header has {length} bytes; at most {FRAME_HEADER_BYTES_MAX} are allowed")
        try:
            header.ParseFromString(bytes(view[start:at]))
        except DecodeError as error:
            raise CorruptFrame(f"the frame's header is not valid protobuf: {error}") from error
    return [payload]


def varint(value: int) -> bytes:
    """Return an unsigned number as protobuf writes it, and Kafka, too."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return (value, position after it); at most ten bytes, as in protobuf."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            break
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise CorruptFrame("the frame ends inside a length, or has one of more than ten bytes")

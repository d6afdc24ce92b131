"""Handles: text that a program keeps to name a message later, in another process too.

PREFIX + base64url( CRC-32C of the rest, 4 bytes, big-endian | data )

A handle of a delayed message begins with "d1.", and its data is a RecallDelayedRequest.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from crc32c import crc32c
from google.protobuf.message import DecodeError

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb

PREFIX = "d1."
HANDLE_CHARS_MAX = 2000
_CRC_BYTES = 4


def handle_of(message: pb.RecallDelayedRequest) -> str:
    """Return the handle of the message that the request names."""
    return text_of(PREFIX, message.SerializeToString())


def request_of(handle: str) -> pb.RecallDelayedRequest:
    """Return what the handle names. Raises InvalidRequest."""
    if not isinstance(handle, str):
        raise InvalidRequest(f"the handle of a delayed message is text, not {type(handle).__name__}")
    try:
        return _decoded(handle)
    except (ValueError, DecodeError) as error:
        raise InvalidRequest(
            f"{handle!r:.100} is not the handle of a delayed message ({error}): give the whole text of"
            " SendResult.handle"
        ) from error


def _decoded(handle: str) -> pb.RecallDelayedRequest:
    found = pb.RecallDelayedRequest()
    found.ParseFromString(data_of(PREFIX, handle))
    if not found.topic or not found.topic_id:
        raise ValueError("it names no topic")
    return found


def text_of(prefix: str, data: bytes) -> str:
    """Return the handle that holds `data`."""
    return prefix + _coded(crc32c(data).to_bytes(_CRC_BYTES, "big") + data)


def data_of(prefix: str, handle: str) -> bytes:
    """Return what a handle holds. Raises ValueError, with a text that says what is wrong."""
    if not handle.startswith(prefix) or len(handle) > HANDLE_CHARS_MAX:
        raise ValueError(f"it does not begin with {prefix!r}, or has more than {HANDLE_CHARS_MAX} characters")
    text = handle.removeprefix(prefix)
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _coded(data) != text:
        raise ValueError("it has characters that no handle has")
    if len(data) < _CRC_BYTES or crc32c(data[_CRC_BYTES:]) != int.from_bytes(data[:_CRC_BYTES], "big"):
        raise ValueError("its checksum does not fit")
    return data[_CRC_BYTES:]


def _coded(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")

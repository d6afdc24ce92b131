"""Frames of the Kafka protocol: an int32 length, a header, a message.

    request     length · api key int16 · version int16 · correlation id int32 · client id string
                · tagged fields, if the version of the message is flexible · message
    response    length · correlation id int32 · tagged fields, if it is flexible · message

The answer to ApiVersions has no tagged fields in its header in any version, because a client reads
it before it knows which versions there are. A connection cannot go on behind a frame that is
CorruptFrame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.buffers import KIB, MIB, Buffer
from ledgermq.errors import CorruptFrame
from ledgermq_broker.kafka.wire.messages import Api, api_of
from ledgermq_broker.kafka.wire.primitives import NO_TAGS, Reader

FRAME_BYTES_MAX = 100 * MIB
"""Largest request, as Kafka's (socket.request.max.bytes)."""
PLAIN_FRAME_BYTES_MAX = 16 * MIB
"""Largest request that carries no records."""
BUFFER_BYTES = 64 * KIB
"""Room for what arrives; a frame that is larger gets its own memory, which grows as its bytes arrive. A connection
that has sent whole frames only has none."""

GROWN_AT_ONCE_BYTES = MIB
"""A frame up to this size gets its memory in one step: to move what has arrived costs more than to read it."""

_LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """`version`: of the message. `client_id`: "" for none."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str


class FrameBuffer:
    """Cuts what arrives into frames.

    Its memory follows the bytes that have arrived, never a length that was only announced: beyond `BUFFER_BYTES` it is
    at most 16 times as much.
    `bytes_max`: of one frame, and it may change between two.
    """

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._buffer = bytearray()
        self._start = 0
        self._end = 0

    @property
    def unread_bytes(self) -> int:
        """Return how many bytes of an unfinished frame are here."""
        return self._end - self._start

    @property
    def held_bytes(self) -> int:
        """Return the memory that it takes."""
        return len(self._buffer)

    def room(self) -> memoryview:
        """Return memory for bytes that arrive, at least one."""
        if self._end == len(self._buffer):
            most = max(2 * self.unread_bytes, min(16 * self.unread_bytes, GROWN_AT_ONCE_BYTES))
            self._move(max(BUFFER_BYTES, min(_LENGTH.size + (self._length() or 0), most)))
        return memoryview(self._buffer)[self._end :]

    def filled(self, count: int) -> list[memoryview]:
        """Take `count` bytes that were written into `room()`, and return the frames that are whole now, each
        without its length. Raises CorruptFrame.
        """
        self._end += count
        frames: list[memoryview] = []
        while (length := self._length()) is not None and self._end - self._start >= _LENGTH.size + length:
            start = self._start + _LENGTH.size
            self._start = start + length
            frames.append(self._frame(start, length))
        if self._start == self._end:
            self._move(0)
        return frames

    def feed(self, data: Buffer) -> list[memoryview]:
        """Take bytes, and return the frames that are whole now. Raises CorruptFrame."""
        frames: list[memoryview] = []
        view = memoryview(data)
        while view:
            room = self.room()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            frames += self.filled(count)
            view = view[count:]
        return frames

    def _length(self) -> int | None:
        """Return the length of the frame that begins at `_start`; None if it is not here yet."""
        if self._end - self._start < _LENGTH.size:
            return None
        length: int = _LENGTH.unpack_from(self._buffer, self._start)[0]
        if not _HEAD.size <= length <= self.bytes_max:
            raise CorruptFrame(f"a frame of {length} bytes; {_HEAD.size} to {self.bytes_max} are allowed")
        return length

    def _frame(self, start: int, length: int) -> memoryview:
        """Return a frame. A large one is not copied: it keeps the memory, and what follows moves."""
        view = memoryview(self._buffer)[start : start + length]
        if length <= BUFFER_BYTES // 4:
            return memoryview(bytes(view))
        self._move(self.unread_bytes and max(BUFFER_BYTES, self.unread_bytes))
        return view

    def _move(self, size: int) -> None:
        """Move what is unread into other memory of `size`."""
        unread = bytearray(size)
        unread[: self._end - self._start] = memoryview(self._buffer)[self._start : self._end]
        self._buffer = unread
        self._start, self._end = 0, self._end - self._start


def read_head(frame: Buffer) -> tuple[RequestHead, Reader]:
    """Return the head of a request, and a reader that stands at its message. Raises CorruptFrame.

    A version of an API that is not known here has no readable end of its head: then the reader stands
    behind the client id.
    """
    reader = Reader(frame)
    api_key, version, correlation_id = reader.fixed(_HEAD)
    client_id = reader.string_or_none(False, True) or ""
    head = RequestHead(api_key, version, correlation_id, client_id)
    api = api_of(api_key)
    if api is not None and api.reads(version) and version >= api.flexible_from:
        reader.skip_tags()
    if api is not None and not api.carries_records and len(frame) > PLAIN_FRAME_BYTES_MAX:
        raise CorruptFrame(f"a {api.name} request of {len(frame)} bytes; at most {PLAIN_FRAME_BYTES_MAX} are allowed")
    return head, reader


def response_frame(api: Api, version: int, correlation_id: int, message: Sequence[Buffer]) -> list[Buffer]:
    """Return the pieces of a response."""
    head = _LENGTH.pack(correlation_id)
    if version >= api.flexible_from and not api.plain_response_head:
        head += NO_TAGS
    return [_LENGTH.pack(len(head) + sum(map(len, message))) + head, *message]


def request_frame(api: Api, version: int, correlation_id: int, client_id: str, message: Sequence[Buffer]) -> bytes:
    """Return a request, as clients send it."""
    name = client_id.encode()
    head = _HEAD.pack(api.key, version, correlation_id) + struct.pack(">h", len(name)) + name
    if version >= api.flexible_from:
        head += NO_TAGS
    return _LENGTH.pack(len(head) + sum(map(len, message))) + head + b"".join(message)


def read_response(api: Api, version: int, frame: Buffer) -> tuple[int, Reader]:
    """Return the correlation id of a response, and a reader that stands at its message. Raises CorruptFrame."""
    reader = Reader(frame)
    correlation_id: int = reader.fixed(_LENGTH)[0]
    if version >= api.flexible_from and not api.plain_response_head:
        reader.skip_tags()
    return correlation_id, reader

"""A caller that speaks HTTP/2 frames itself: calls that are opened and left, half a message, resets in a
row. Headers are literals without a table or Huffman codes (RFC 7541, 6.2.2), so no library is needed.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
CANCEL = 8
FRAME_BYTES = 16_384
WINDOW_BYTES = 65_535
INITIAL_WINDOW_SIZE = 4
TIME_OUT_S = 60.0


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def _literal(text: bytes) -> bytes:
    return (bytes([len(text)]) if len(text) < 127 else bytes([127]) + _varint(len(text) - 127)) + text


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


class RawHttp2:
    """A blocking connection without TLS."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=TIME_OUT_S)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        self._next = 1
        self._is_closed = False
        self.is_broken = False
        """Whether the other side took no more."""
        self._initial = WINDOW_BYTES
        self._windows = {0: WINDOW_BYTES}
        """What may be sent, by stream; 0 is the connection."""
        self._buffer = b""

    def headers(self, path: str, metadata: Iterable[tuple[str, str]] = (), *, end: bool = False) -> bytes:
        """The frame that opens the next stream."""
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "x"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *metadata,
        ]
        block = b"".join(b"\0" + _literal(name.encode()) + _literal(value.encode()) for name, value in fields)
        self.stream, self._next = self._next, self._next + 2
        return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), self.stream, block)

    def reset(self, stream: int) -> bytes:
        return frame(RST_STREAM, 0, stream, struct.pack("!I", CANCEL))

    def send(self, data: bytes) -> bool:
        """Return whether the connection still takes it."""
        try:
            self._socket.sendall(data)
        except OSError:
            self.is_broken = True
            return False
        return True

    def first_frame_of(self, stream: int, seconds: float) -> int | None:
        """The kind of the first frame of a stream; None where none comes within that time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._is_closed:
            for kind, _, of, _ in self.read_frames(0.2):
                if of == stream and kind != WINDOW_UPDATE:
                    return kind
        return None

    def read_frames(self, seconds: float) -> list[tuple[int, int, int, bytes]]:
        """What comes within that time: kind, flags, stream, payload. Settings and pings are acknowledged."""
        found = []
        self._socket.settimeout(seconds)
        with suppress(OSError):
            while data := self._socket.recv(1 << 20):
                self._buffer += data
                while len(self._buffer) >= 9:
                    length = int.from_bytes(self._buffer[:3], "big")
                    if len(self._buffer) < 9 + length:
                        break
                    kind, flags, stream = struct.unpack("!BBI", self._buffer[3:9])
                    payload, self._buffer = self._buffer[9 : 9 + length], self._buffer[9 + length :]
                    if kind in (SETTINGS, PING) and not flags & ACK:
                        self.send(frame(kind, ACK, 0, payload if kind == PING else b""))
                    self._note(kind, flags, stream, payload)
                    found.append((kind, flags, stream, payload))
            self._is_closed = True
        self._socket.settimeout(TIME_OUT_S)
        return found

    def _note(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            self._windows[stream] = self._windows.get(stream, self._initial) + more
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from("!HI", payload, at)
                if name == INITIAL_WINDOW_SIZE:
                    for one in self._windows:
                        self._windows[one] += value - self._initial if one else 0
                    self._initial = value

    def send_data(self, stream: int, size: int, seconds: float) -> int:
        """Send so many bytes of a request within the windows that the other side opens; return how many were sent."""
        end, sent = time.monotonic() + seconds, 0
        self._windows.setdefault(stream, self._initial)
        while sent < size and time.monotonic() < end:
            room = min(self._windows[0], self._windows[stream], FRAME_BYTES, size - sent)
            if room <= 0:
                self.read_frames(0.02)
                continue
            if not self.send(frame(DATA, 0, stream, bytes(room))):
                break
            self._windows[0] -= room
            self._windows[stream] -= room
            sent += room
        return sent

    def is_closed(self, seconds: float) -> bool:
        """Whether the other side ends the connection within that time."""
        self._is_closed = False
        frames = self.read_frames(seconds)
        return (
            self._is_closed or any(kind == GOAWAY for kind, *_ in frames) or not self.send(frame(PING, 0, 0, bytes(8)))
        )

    def close(self) -> None:
        self._socket.close()

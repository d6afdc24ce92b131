"""A socket that takes what a real Kafka producer sends, and keeps the bytes of its record batches.

It answers only what librdkafka asks for to produce: ApiVersions, Metadata, InitProducerId, Produce.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 18, 22
_FETCH, _FIND_COORDINATOR = 1, 10
"""Never asked for, but librdkafka compresses by lz4 and zstd only for brokers that announce them."""
_NEWEST = {PRODUCE: 7, _FETCH: 11, _FIND_COORDINATOR: 0, METADATA: 2, API_VERSIONS: 0, INIT_PRODUCER_ID: 0}
_UNSUPPORTED_VERSION = 35
PRODUCER_ID = 4711


class Capture:
    """`batches`: the records of each partition of each request, as they came."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._offset = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                request = stream.read(struct.unpack(">i", head)[0])
                key, version, correlation, client = struct.unpack_from(">hhih", request)
                body = memoryview(request)[10 + max(client, 0) :]
                answer = struct.pack(">i", correlation) + self._answer(key, version, body)
                connection.sendall(struct.pack(">i", len(answer)) + answer)

    def _answer(self, key: int, version: int, body: memoryview) -> bytes:
        if key == API_VERSIONS:
            listed = b"".join(struct.pack(">hhh", name, 0, newest) for name, newest in _NEWEST.items())
            return struct.pack(">hi", _UNSUPPORTED_VERSION if version else 0, len(_NEWEST)) + listed
        if key == METADATA:
            partition = struct.pack(">hiiiiii", 0, 0, 1, 1, 1, 1, 1)
            brokers = struct.pack(">ii", 1, 1) + _text("127.0.0.1") + struct.pack(">ih", self.port, -1)
            topic = struct.pack(">h", 0) + _text("t") + struct.pack(">bi", 0, 1) + partition
            return brokers + _text("id") + struct.pack(">ii", 1, 1) + topic
        if key == INIT_PRODUCER_ID:
            return struct.pack(">ihqh", 0, 0, PRODUCER_ID, 0)
        assert key == PRODUCE, f"API {key} is not answered here"
        return self._produced(body)

    def _produced(self, body: memoryview) -> bytes:
        """One topic with one partition: produce version 7 without a transactional id."""
        name_at = 2 + 2 + 4 + 4
        at = name_at + 2 + struct.unpack_from(">h", body, name_at)[0]
        _, _, length = struct.unpack_from(">iii", body, at)
        records = bytes(body[at + 12 : at + 12 + length])
        self.batches.append(records)
        base, self._offset = self._offset, self._offset + struct.unpack_from(">i", records, 57)[0]
        result = struct.pack(">iihqqq", 1, 0, 0, base, -1, 0)
        return struct.pack(">i", 1) + _text("t") + result + struct.pack(">i", 0)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


@contextmanager
def captured() -> Iterator[Capture]:
    capture = Capture()
    try:
        yield capture
    finally:
        capture.close()

"""An HTTP server that gives prepared answers, or none, and counts requests: for what
clients make of bad answers.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import ClassVar, Literal


@dataclass(frozen=True)
class Answer:
    """`failure`: reset the connection after the request, stay silent, or close in the middle of the
    body.

    `date`: what the header says; None for now, "" for no such header.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    date: str | None = None
    failure: Literal["reset", "silent", "truncated"] | None = None

    def head(self, length: int) -> bytes:
        date = formatdate(usegmt=True) if self.date is None else self.date
        lines = [
            f"HTTP/1.1 {self.status} Scripted",
            f"Content-Length: {length}",
            *(f"{k}: {v}" for k, v in self.headers.items()),
        ]
        if date:
            lines.append(f"Date: {date}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n"


class ScriptedServer:
    """`answer` is given to every request, unless `script` still holds some.

    `requests`: method and path of each.
    """

    def __init__(self) -> None:
        self.answer = Answer()
        self.script: deque[Answer] = deque()
        self.requests: list[str] = []
        self.stopped = threading.Event()
        self.endpoint = ""

    def next_answer(self, request_line: str) -> Answer:
        self.requests.append(request_line.rpartition(" ")[0].partition("?")[0])
        return self.script.popleft() if self.script else self.answer


class _Server(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    scripted: ScriptedServer


class _Handler(BaseRequestHandler):
    _LINGER_NOT: ClassVar[bytes] = struct.pack("ii", 1, 0)

    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        while (head := self._read_request()) is not None:
            answer = self.server.scripted.next_answer(head)
            if answer.failure == "reset":
                self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, self._LINGER_NOT)
                return
            if answer.failure == "silent":
                self.server.scripted.stopped.wait(30)
                return
            body = b"" if head.startswith("HEAD") else answer.body
            if answer.failure == "truncated":
                self.request.sendall(answer.head(len(body) + 100) + body)
                return
            self.request.sendall(answer.head(len(answer.body)) + body)

    def _read_request(self) -> str | None:
        data = b""
        while b"\r\n\r\n" not in data:
            part = self.request.recv(65536)
            if not part:
                return None
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        ]
        left = (lengths[0] if lengths else 0) - len(body)
        while left > 0 and (part := self.request.recv(65536)):
            left -= len(part)
        return head.split(b"\r\n")[0].decode()


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.scripted = scripted
        scripted.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield scripted
        finally:
            scripted.stopped.set()
            server.shutdown()
            thread.join()

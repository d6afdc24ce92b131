"""The first bytes at a port with TLS: nothing but a handshake is answered, every connection is closed, and the next
client is let in.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

from ledgermq.sources import Sources
from ledgermq_broker.ports.call_meter import CallMeter
from ledgermq_broker.ports.grpc_server import CALLS_MAX, GrpcServer
from ledgermq_broker.ports.tls import CertificateFiles, Certificates, TlsMeter
from tests.certificates import Authority
from tests.fuzz.surface import Surface, Untyped

ANSWER_S = 60.0
HEALTH_EVERY = 100
ALERT, HANDSHAKE = 21, 22
H2 = b"\x02h2"


def _extension(number: int, body: bytes) -> bytes:
    return struct.pack(">HH", number, len(body)) + body


def client_hello(*, newest: bool) -> bytes:
    """A whole ClientHello record; `newest`: of TLS 1.3."""
    suites = struct.pack(">5H", 0x1301, 0x1302, 0xC02B, 0xC02F, 0x00FF)
    extensions = _extension(0, b"\0\x0c\0\0\x09localhost") + _extension(10, b"\0\x04\0\x1d\0\x17")
    extensions += _extension(13, b"\0\x06\x04\x03\x08\x04\x04\x01") + _extension(11, b"\x01\0")
    extensions += _extension(16, struct.pack(">H", len(H2)) + H2)
    if newest:
        extensions += _extension(43, b"\x04\x03\x04\x03\x03") + _extension(45, b"\x01\x01")
        share = b"\0\x1d\0\x20" + bytes([9]) + bytes(31)
        extensions += _extension(51, struct.pack(">H", len(share)) + share)
    body = b"\x03\x03" + bytes(range(32)) + b"\x20" + bytes(32)
    body += struct.pack(">H", len(suites)) + suites + b"\x01\0" + struct.pack(">H", len(extensions)) + extensions
    hello = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + struct.pack(">H", len(hello)) + hello


INPUTS = [
    client_hello(newest=True),
    client_hello(newest=False),
    client_hello(newest=True)[:60],
    client_hello(newest=False) + b"\x14\x03\x03\0\x01\x01\x16\x03\x03\0\x28" + bytes(40),
    b"\x15\x03\x03\0\x02\x02\x28",
    b"\x17\x03\x03\0\x05hello",
    b"\x80\x2e\x01\x03\x01\0\x15\0\0\0\x10" + bytes(40),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    b"POST /ledgermq.v1.Broker/DescribeCluster HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\xff\xff" + bytes(200),
]


class TlsPort:
    """A broker's port, opened by the first input, in a thread with a loop of its own."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._port = 0
        self._trusts: ssl.SSLContext
        self._taken = 0

    def check(self, data: bytes) -> None:
        if self._loop is None:
            self._open()
        answer = self._answer(data)
        if answer and answer[0] not in (ALERT, HANDSHAKE):
            raise Untyped(f"the port answered {answer[:40]!r}")
        self._taken += 1
        if self._taken % HEALTH_EVERY == 0:
            self._check_health()

    def close(self) -> None:
        self._stack.close()

    def _answer(self, data: bytes) -> bytes:
        """What the port sends until it closes the connection."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=ANSWER_S) as line:
            answer = bytearray()
            with suppress(ConnectionError):
                line.sendall(data)
                line.shutdown(socket.SHUT_WR)
            try:
                with suppress(ConnectionError):
                    while piece := line.recv(65536):
                        answer += piece
            except TimeoutError:
                raise Untyped(f"the port kept a connection open for {ANSWER_S:.0f} s") from None
            return bytes(answer)

    def _check_health(self) -> None:
        try:
            with (
                socket.create_connection(("127.0.0.1", self._port), timeout=ANSWER_S) as line,
                self._trusts.wrap_socket(line, server_hostname="localhost") as found,
            ):
                if found.selected_alpn_protocol() != "h2":
                    raise Untyped(f"the next client was given {found.selected_alpn_protocol()}")
        except OSError as error:
            raise Untyped(f"the next client was not let in: {error!r}") from error

    def _open(self) -> None:
        authority = Authority(Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ledgermq-fuzz-"))))
        pair = authority.issue("broker")
        certificates = Certificates(CertificateFiles(str(pair.cert), str(pair.key), None), Sources(), TlsMeter())
        loop = self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="the port", daemon=True)
        thread.start()

        async def listen() -> tuple[GrpcServer, int]:
            server = GrpcServer(CALLS_MAX, CallMeter())
            return server, await server.listen("127.0.0.1", 0, certificates.grpc_credentials(asks_clients=False))

        server, self._port = asyncio.run_coroutine_threadsafe(listen(), loop).result(ANSWER_S)
        self._trusts = ssl.create_default_context(cafile=str(authority.ca))
        self._trusts.set_alpn_protocols(["h2"])

        def end() -> None:
            asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(ANSWER_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(ANSWER_S)
            loop.close()

        self._stack.callback(end)


def surfaces() -> list[Surface]:
    port = TlsPort()
    return [Surface("tls-handshake", INPUTS, port.check, weight=0.05, close=port.close)]

"""An S3 server that is asked too much: a proxy before it that answers 503 SlowDown to a share of
the requests, as S3 does in a storm.

One request a connection. Half of those that are refused have reached the server, which is the worse
half: the answer was lost on the way.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from tests.servers.cutting_proxy import PIECE_BYTES
from tests.servers.loopback_server import serving

SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
REFUSAL = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    % (
        len(SLOW_DOWN),
        SLOW_DOWN,
    )
)
_CONNECTION = re.compile(rb"\r\nconnection:[^\r]*", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect:[^\r]*", re.IGNORECASE)


class ThrottlingProxy:
    """`share` of the requests that are refused, 0 to 1; set it at any time.

    `answers`: how many were, and how many not.
    """

    def __init__(self, upstream: str, seed: int) -> None:
        parts = urlsplit(upstream)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._random = random.Random(seed)
        self.share = 0.0
        self.answers: Counter[str] = Counter()
        self.endpoint = ""
        self.opened: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened.append(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                if _EXPECT.search(head):
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                found = _LENGTH.search(head)
                request = _closing(head) + await reader.readexactly(int(found[1]) if found else 0)
                refused, first = self._random.random() < self.share, self._random.random() < 0.5
                self.answers["refused" if refused else "passed"] += 1
                if not (refused and first):
                    await self._pass(request, None if refused else writer)
                if refused:
                    writer.write(REFUSAL)
                await writer.drain()
        finally:
            writer.close()

    async def _pass(self, request: bytes, writer: asyncio.StreamWriter | None) -> None:
        """To the server; `writer` gets what it answers."""
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        self.opened.append(up_writer)
        try:
            up_writer.write(request)
            await up_writer.drain()
            while data := await up_reader.read(PIECE_BYTES):
                if writer is not None:
                    writer.write(data)
                    await writer.drain()
        finally:
            up_writer.close()


def _closing(head: bytes) -> bytes:
    """The same request, of a client that wants nothing more on its connection."""
    cut = _EXPECT.sub(b"", _CONNECTION.sub(b"", head))
    return cut.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


@asynccontextmanager
async def throttling_proxy(upstream: str, seed: int) -> AsyncIterator[ThrottlingProxy]:
    """`upstream`: http://host:port. Its `endpoint` is where clients go."""
    proxy = ThrottlingProxy(upstream, seed)
    try:
        async with serving(proxy.serve) as proxy.endpoint:
            yield proxy
    finally:
        for writer in proxy.opened:
            writer.transport.abort()
        await asyncio.sleep(0)  # the loop closes their sockets in its next turn

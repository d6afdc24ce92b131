"""A TCP proxy that makes a line bad: cuts connections by a seed, refuses them, holds them, slows
them down.

Cuts fall in the middle of a request, or after the server has done it and before it can say so. A
line that is held delivers late what was sent meanwhile, as TCP does once a network has healed.
Toxiproxy (Go) was looked at: another process, toolchain and protocol to steer it, cuts that follow
no seed, and nothing that is delivered late; its Python client has had no release for years.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from ledgermq.runtime.tasks import end
from tests.servers.loopback_server import serving

NEVER = 1 << 40
"""As `pieces_max`: no connection is cut but by `cut_off`."""
PIECE_BYTES = 65536


class CuttingProxy:
    """Set the fields at any time; connections that are open heed them too, but for `pieces_max`,
    which is drawn when they begin.
    """

    def __init__(self, upstream: str, seed: int, pieces_max: int) -> None:
        parts = urlsplit(upstream)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._random = random.Random(seed)
        self.cuts: Counter[str] = Counter()
        self.pieces_max = pieces_max
        self.delay_s = 0.0
        """Of every piece, in both directions."""
        self.bytes_per_s = 0.0
        """Of every connection, in each direction; 0 = no bound."""
        self._connections = 0
        self._swallowed = 0
        """Of the connections in their order, as many of the first ones lead nowhere."""
        self.endpoint = ""
        self._down = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        """host:port, where clients go."""
        return urlsplit(self.endpoint).netloc

    def cut_off(self) -> None:
        """Until `restore`: every connection is reset, the open ones now."""
        self._down = True
        for writer in list(self._open):
            line = writer.get_extra_info("socket")
            if line is not None:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
            writer.transport.abort()

    def hold(self) -> None:
        """Until `restore`: connections stay open, or are taken, and nothing comes through; it does
        afterwards.
        """
        self._flowing.clear()

    def swallow(self) -> None:
        """The connections that are open now stay open, and all that comes from either side is dropped. New ones are
        good: as behind a firewall that has forgotten what it let through.
        """
        self._swallowed = self._connections

    def restore(self) -> None:
        """A good line, for connections that are not swallowed."""
        self._down = False
        self._flowing.set()
        self.pieces_max, self.delay_s, self.bytes_per_s = NEVER, 0.0, 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            await self._flowing.wait()
            if self._down:
                return
            with suppress(OSError):  # no process listens behind the proxy: the client sees its connection reset
                up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
                self._open.add(up_writer)
                try:
                    await self._connect(reader, writer, up_reader, up_writer)
                finally:
                    self._open.discard(up_writer)
                    up_writer.transport.abort()
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _connect(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        self._connections += 1
        number = self._connections
        pieces = self._random.randrange(self.pieces_max)
        requests_max, answers_max = (pieces, None) if self._connections % 2 else (None, pieces)
        pumps = {
            asyncio.create_task(self._pump("request", number, reader, up_writer, requests_max)),
            asyncio.create_task(self._pump("answer", number, up_reader, writer, answers_max)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*pumps)

    async def _pump(
        self,
        direction: str,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pieces_max: int | None,
    ) -> None:
        pieces = 0
        with suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                if pieces == pieces_max:
                    self.cuts[direction] += 1
                    return
                pieces += 1
                if self.delay_s or self.bytes_per_s:
                    await asyncio.sleep(self.delay_s + (len(data) / self.bytes_per_s if self.bytes_per_s else 0))
                await self._flowing.wait()
                if number <= self._swallowed:
                    continue
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def cutting_proxy(upstream: str, seed: int, pieces_max: int = 5) -> AsyncIterator[CuttingProxy]:
    """`upstream`: http://host:port. Its `endpoint` is where clients go.

    Every connection is cut, after fewer than `pieces_max` pieces of bytes in the direction that is
    drawn for it.
    """
    proxy = CuttingProxy(upstream, seed, pieces_max)
    async with serving(proxy.serve) as proxy.endpoint:
        yield proxy

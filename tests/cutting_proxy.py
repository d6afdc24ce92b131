"""A TCP proxy that cuts connections by a seed: in the middle of a request, or after the server has done it and before it can say so."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

NEVER = 1 << 40
"""As `pieces_max`: no connection is cut but by `cut_off`."""


class CuttingProxy:
    def __init__(self, upstream: str, seed: int, pieces_max: int) -> None:
        parts = urlsplit(upstream)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._random = random.Random(seed)
        self.cuts: Counter[str] = Counter()
        self._pieces_max = pieces_max
        self._connections = 0
        self.endpoint = ""
        self._down = False
        self._open: set[asyncio.StreamWriter] = set()

    def cut_off(self) -> None:
        """Until `restore`: every connection is reset, the open ones now."""
        self._down = True
        for writer in self._open:
            writer.transport.abort()

    def restore(self) -> None:
        self._down = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._down:
            writer.transport.abort()
            return
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        self._connections += 1
        pieces = self._random.randrange(self._pieces_max)
        requests_max, answers_max = (pieces, None) if self._connections % 2 else (None, pieces)
        pumps = {
            asyncio.create_task(self._pump("request", reader, up_writer, requests_max)),
            asyncio.create_task(self._pump("answer", up_reader, writer, answers_max)),
        }
        self._open |= {writer, up_writer}
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._open -= {writer, up_writer}
            for each in (writer, up_writer):
                each.transport.abort()

    async def _pump(self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces_max: int | None) -> None:
        pieces = 0
        with suppress(OSError):
            while data := await reader.read(65536):
                if pieces == pieces_max:
                    self.cuts[direction] += 1
                    return
                pieces += 1
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def cutting_proxy(upstream: str, seed: int, pieces_max: int = 5) -> AsyncIterator[CuttingProxy]:
    """`upstream`: http://host:port. Its `endpoint` is where clients go.

    Every connection is cut, after fewer than `pieces_max` pieces of bytes in the direction that is drawn for it.
    """
    proxy = CuttingProxy(upstream, seed, pieces_max)
    running: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(proxy.serve(reader, writer))
        running.add(task)
        task.add_done_callback(running.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    proxy.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        for task in set(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

"""One hostile program against an HTTP gateway: complete requests, as fast as it can, on many connections.

`python -m tests.attacks.http_flood PORT CONNECTIONS SECONDS [TOKEN]` prints how many requests were answered, by status.
Without a token each request carries another wrong one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from contextlib import suppress


class HttpFlood:
    """`token`: "" for a wrong one in each request."""

    def __init__(self, port: int, seconds: float, token: str) -> None:
        self._port, self._token = port, token
        self._end_s = time.monotonic() + seconds
        self._sent = 0
        self.answers: Counter[int] = Counter()

    async def run(self, connections: int) -> None:
        await asyncio.gather(*(self._repeat() for _ in range(connections)))

    async def _repeat(self) -> None:
        while time.monotonic() < self._end_s:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    while time.monotonic() < self._end_s:
                        writer.write(self._request())
                        await self._answer(reader)
                finally:
                    writer.close()

    def _request(self) -> bytes:
        self._sent += 1
        token = self._token or f"wrong-{id(self)}-{self._sent}"
        return f"GET /v1/topics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        self.answers[int(head.split(b" ", 2)[1])] += 1


def main() -> None:
    port, connections, seconds, *token = sys.argv[1:]
    flood = HttpFlood(int(port), float(seconds), token[0] if token else "")
    print("warm", flush=True)
    asyncio.run(flood.run(int(connections)))
    print(dict(flood.answers), flush=True)


if __name__ == "__main__":
    main()

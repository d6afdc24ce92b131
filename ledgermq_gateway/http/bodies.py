"""Read the body of a request: within its bounds of size, time and memory, and decompressed by gzip alone."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable

from ledgermq_gateway.http.limits import Share
from ledgermq_gateway.http.problems import Problem

Read = Callable[[], Awaitable[bytes]]
"""Return the next bytes of a body, b"" at its end. Raises ConnectionError, or Problem, if it ends too early."""
_GZIP = 16 + zlib.MAX_WBITS


async def read_body(read: Read, encoding: str, bytes_max: int, timeout_s: float | None, share: Share) -> bytes:
    """Return the body. `encoding`: its Content-Encoding, "" for none. `timeout_s`: None for one that has come as a
    whole. Raises Problem.
    """
    if encoding not in ("", "gzip"):
        raise Problem(
            "UNSUPPORTED_MEDIA_TYPE",
            f"Content-Encoding {encoding[:40]!r} is not understood: send gzip, or leave it out",
            headers=(("Accept-Encoding", "gzip"),),
        )
    decoder = _Gunzip(bytes_max) if encoding else None
    if timeout_s is None:
        return await _read(read, decoder, bytes_max, share)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(read, decoder, bytes_max, share)
    except TimeoutError:
        raise Problem("REQUEST_TIMEOUT", f"the body was not here within {timeout_s:g} s", headers=(_CLOSE,)) from None


async def _read(read: Read, decoder: _Gunzip | None, bytes_max: int, share: Share) -> bytes:
    parts: list[bytes] = []
    size = 0
    while data := await read():
        share.take(len(data))
        for part in [data] if decoder is None else decoder.decode(data, share):
            parts.append(part)
            size += len(part)
            if size > bytes_max:
                raise too_large(bytes_max)
    if decoder is not None:
        decoder.check_ended()
    return b"".join(parts)


_CLOSE = ("Connection", "close")


def too_large(bytes_max: int) -> Problem:
    return Problem(
        "BODY_TOO_LARGE", f"the body is larger than {bytes_max} bytes: send less at a time", headers=(_CLOSE,)
    )


class _Gunzip:
    """Decompresses one member after the other, counting what comes out while it is decoded."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._members = 0
        self._decoder = zlib.decompressobj(_GZIP)
        self._started = False

    def decode(self, data: bytes, share: Share) -> list[bytes]:
        found: list[bytes] = []
        room = self._bytes_max + 1
        while data:
            if self._decoder.eof:
                raise Problem("MALFORMED", "the gzip body has more than one member: send one")
            self._started = True
            try:
                part = self._decoder.decompress(data, room)
            except zlib.error as error:
                raise Problem("MALFORMED", f"the body is not gzip: {error}") from None
            share.take(len(part))
            room -= len(part)
            found.append(part)
            if room <= 0:
                raise too_large(self._bytes_max)
            data = self._decoder.unused_data or self._decoder.unconsumed_tail
        return found

    def check_ended(self) -> None:
        if self._started and not self._decoder.eof:
            raise Problem("MALFORMED", "the gzip body ends early")

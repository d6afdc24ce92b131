"""Direct reads: a consumer reads ranges of segments from the store, at locations that a broker
names.

A broker may name any location, so only URLs below the program's own URL are opened. The bytes are
used only if their checksum is the one that the broker named: the segment may have been trimmed in
between, and another object stored in its place. Any failure is `CannotRead`; the caller then
requests the bytes from the broker.
"""

from __future__ import annotations

import asyncio
import os
import stat
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlsplit

from ledgermq.errors import CorruptFrame
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX

READ_S_MAX = 10.0
"""Time limit for all ranges of one answer, and for an HTTP server between two bytes."""
POSITION_MAX = 2**62


class CannotRead(Exception):
    """This consumer cannot read the location, or no longer; the broker still has the bytes."""


@dataclass(frozen=True, slots=True)
class Range:
    """Consecutive batches in one object: their lengths and checksums."""

    url: str
    position: int
    batches: list[tuple[int, int]]

    @property
    def length(self) -> int:
        return sum(length for length, _ in self.batches)


class DirectReads:
    """Reads located batches. `place`: the URL below which this consumer may read."""

    def __init__(self, place: str, threads: Executor) -> None:
        self._place = place.rstrip("/") + "/"
        self._threads = threads

    async def read(self, header: pb.FetchHeader) -> list[memoryview]:
        """Return the bytes of all batches that the answer only locates, in the header's order.

        Raises CannotRead; CorruptFrame for an impossible location.
        """
        ranges = ranges_of(header)
        if not ranges:
            return []
        for wanted in ranges:
            self._check(wanted.url)
        try:
            async with asyncio.timeout(READ_S_MAX):
                return await asyncio.get_running_loop().run_in_executor(self._threads, _read_all, ranges)
        except TimeoutError as error:
            raise CannotRead(f"{_shown(ranges[0].url)} was not read within {READ_S_MAX} s") from error

    def _check(self, url: str) -> None:
        below = url.removeprefix(self._place)
        if below == url or ".." in unquote(urlsplit(url).path).split("/"):
            raise CannotRead(f"{_shown(url)} is not below {self._place}, where this consumer may read")


def ranges_of(header: pb.FetchHeader) -> list[Range]:
    """Return the ranges to read; adjacent batches of one object are one range. Raises CorruptFrame."""
    ranges: list[Range] = []
    end: tuple[str, int] | None = None
    size_bytes = 0
    for batch in (batch for part in header.partitions for batch in part.batches if batch.object):
        size_bytes += batch.length
        if batch.object > len(header.objects) or batch.position > POSITION_MAX or size_bytes > FRAME_PAYLOAD_BYTES_MAX:
            raise CorruptFrame(
                f"an answer locates {batch.length} bytes at {batch.position} of object {batch.object}, or too many"
                " in all"
            )
        url = header.objects[batch.object - 1]
        if end == (url, batch.position):
            ranges[-1].batches.append((batch.length, batch.crc))
        else:
            ranges.append(Range(url, batch.position, [(batch.length, batch.crc)]))
        end = (url, batch.position + batch.length)
    return ranges


def _read_all(ranges: Sequence[Range]) -> list[memoryview]:
    return [piece for wanted in ranges for piece in _pieces(wanted)]


def _pieces(wanted: Range) -> list[memoryview]:
    read = _read_file if wanted.url.startswith("file:") else _read_http
    try:
        data = memoryview(read(wanted.url, wanted.position, wanted.length))
    except (OSError, ValueError, HTTPException) as error:
        raise CannotRead(f"{_shown(wanted.url)}: {error}") from error
    if len(data) != wanted.length:
        raise CannotRead(f"{_shown(wanted.url)} has {len(data)} bytes at {wanted.position}, not {wanted.length}")
    pieces, at = [], 0
    for length, crc in wanted.batches:
        pieces.append(data[at : at + length])
        at += length
        try:
            check_crc(pieces[-1], crc)
        except CorruptFrame as error:
            raise CannotRead(f"{_shown(wanted.url)}, byte {wanted.position + at - length}: {error.message}") from error
    return pieces


def _read_file(url: str, position: int, length: int) -> bytes:
    # O_NONBLOCK: a pipe of that name must not block.
    file = os.open(unquote(urlsplit(url).path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError("not a regular file")
        return os.pread(file, length, position)
    finally:
        os.close(file)


def _read_http(url: str, position: int, length: int) -> bytes:
    request = urllib.request.Request(url, headers={"Range": f"bytes={position}-{position + length - 1}"})
    try:
        answer = _http.open(request, timeout=READ_S_MAX)
    except urllib.error.HTTPError as refusal:
        answer = refusal
    with answer:
        if answer.status != 206:
            raise OSError(f"the server answered {answer.status}, not with a part")
        return bytes(answer.read(length + 1))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Refuse redirects, because they could lead to any address."""


_http = urllib.request.build_opener(_NoRedirects)


def _shown(url: str) -> str:
    """Return the URL without its signature."""
    return url.partition("?")[0]

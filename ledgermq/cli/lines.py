"""Lines of a file or of stdin, read beside the event loop: a slow pipe holds nothing up, and a fast
file comes in large pieces.

A thread of its own does each read, on the unbuffered stream: it may stay blocked in the system for
ever (a terminal that nobody types into) without keeping the process from ending.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

from ledgermq.errors import InvalidRecord

READ_BYTES = 256 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024

T = TypeVar("T")


class LineSource:
    """Iterates over lines with their ends kept.

    `size`: bytes of the whole input, None where that is not known.
    """

    def __init__(self, stream: io.RawIOBase | IO[bytes], name: str, size: int | None) -> None:
        self.name = name
        self.size = size
        self.bytes_read = 0
        self.line_number = 0
        self._stream = stream
        self._lines: list[bytes] = []  # complete ones, newest first
        self._begun: list[bytes] = []  # the parts of the line that has no end yet
        self._begun_bytes = 0
        self._ended = False

    @property
    def waiting(self) -> bool:
        """The next line needs a read, which may block."""
        return not self._lines

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while not self._lines:
            if self._ended:
                raise StopIteration
            self._read()
        self.line_number += 1
        return self._lines.pop()

    def _read(self) -> None:
        data = self._stream.read(READ_BYTES)
        if data is None:
            return  # a stream that does not block had nothing at present
        self.bytes_read += len(data)
        self._ended = not data
        self._begun.append(data)
        self._begun_bytes += len(data)
        if data and b"\n" not in data:
            if self._begun_bytes > LINE_BYTES_MAX:
                raise InvalidRecord(f"{self.name}, line {self.line_number + 1}: longer than {LINE_BYTES_MAX} bytes")
            return
        lines = io.BytesIO(b"".join(self._begun)).readlines()
        self._begun = [] if self._ended or lines[-1].endswith(b"\n") else [lines.pop()]
        self._begun_bytes = sum(map(len, self._begun))
        self._lines = lines[::-1]

    def close(self) -> None:
        """Only what `open_lines` opened itself; stdin belongs to the process."""
        if self.size is not None:
            self._stream.close()

    def where(self) -> str:
        return f"{self.name}, line {self.line_number}"


def open_lines(path: Path | None) -> LineSource:
    """None: stdin. Raises OSError."""
    if path is None or str(path) == "-":
        stdin = sys.stdin.buffer
        return LineSource(getattr(stdin, "raw", stdin), "stdin", None)
    return LineSource(path.open("rb", buffering=0), str(path), path.stat().st_size)


async def in_pieces(source: LineSource, items: Iterator[T], items_max: int) -> AsyncIterator[list[T]]:
    """`items`, which are made from the lines of `source`: as many at a time as are there, at most
    `items_max`, at least one.

    An item that cannot be made raises only after those before it have been given.
    """
    failure: Exception | None = None

    def take() -> list[T]:
        nonlocal failure
        if failure is not None:
            raise failure
        taken: list[T] = []
        try:
            for item in items:
                taken.append(item)
                if len(taken) >= items_max or source.waiting:
                    break
        except Exception as error:
            if not taken:
                raise
            failure = error
        return taken

    while piece := await in_daemon_thread(take):
        yield piece


async def in_daemon_thread(function: Callable[[], T]) -> T:
    """As asyncio.to_thread, but nobody waits for the thread when the caller is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # the loop was closed while this thread was blocked

    threading.Thread(target=run, daemon=True, name="ledgermq-input").start()
    return await done

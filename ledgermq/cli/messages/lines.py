"""Read lines of a file or of stdin beside the event loop. A slow pipe does not block the loop, and
a fast file is read in large pieces.

A separate thread makes each read, on the unbuffered stream. That thread may block forever (a
terminal without input) and still does not keep the process from ending.
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
    """Iterates over lines, including their line ends.

    `size`: bytes of the whole input, None if unknown.
    """

    def __init__(self, stream: io.RawIOBase | IO[bytes], name: str, size: int | None) -> None:
        self.name = name
        self.size = size
        self.bytes_read = 0
        self.line_number = 0
        self._stream = stream
        self._lines: list[bytes] = []  # complete lines, newest first
        self._begun: list[bytes] = []  # pieces of the last line, whose end was not read yet
        self._begun_bytes = 0
        self._ended = False

    @property
    def waiting(self) -> bool:
        """Whether the next line needs a read, which may block."""
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
            return  # a non-blocking stream had no data at present
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
        """Close the stream if `open_lines` opened it; stdin belongs to the process."""
        if self.size is not None:
            self._stream.close()

    def where(self) -> str:
        return f"{self.name}, line {self.line_number}"


def open_lines(path: Path | None) -> LineSource:
    """Open a file; `None` means stdin. Raises OSError."""
    if path is None or str(path) == "-":
        stdin = sys.stdin.buffer
        return LineSource(getattr(stdin, "raw", stdin), "stdin", None)
    return LineSource(path.open("rb", buffering=0), str(path), path.stat().st_size)


async def in_pieces(source: LineSource, items: Iterator[T], items_max: int) -> AsyncIterator[list[T]]:
    """Yield `items`, which are made from the lines of `source`, in batches of those that are
    available: at least one and at most `items_max`.

    If an item cannot be made, the items before it are yielded first; then its error is raised.
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
    """Run a function in a thread, like asyncio.to_thread; but if the caller is cancelled, it does
    not wait for the thread.
    """
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

"""Hold a Parquet file in memory: the sink of its writer, and the finished file.

The file consists of parts in Arrow's memory, which is reused for the next file. A stream of Arrow's
would double its one buffer again and again. On large files, moving that buffer and touching its new
pages took half as much processor time as encoding and compressing.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.parquet.files.footer_checksum import ENDING_BYTES, footer_bytes, write_checksums

PART_BYTES_MIN, PART_BYTES_MAX = 64 * 1024, 4 * 1024 * 1024
"""Bounds of a part, which is as large as all before it together."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A finished file. `ending`: its last part, the footer."""

    parts: list[Buffer]
    ending: bytearray
    size: int

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


class FileSink:
    """A binary file for `pyarrow.PythonFile` to write to."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self._room = 0  # bytes of the last part that are still free
        self._size = 0

    def write(self, data: Buffer) -> int:
        left = memoryview(data).cast("B")
        self._size += left.nbytes
        while left:
            if not self._room:
                self._room = min(PART_BYTES_MAX, max(PART_BYTES_MIN, self._size))
                self._parts.append(memoryview(pa.allocate_buffer(self._room)).cast("B"))
            part = self._parts[-1][-self._room :]
            taken = min(len(left), len(part))
            part[:taken] = left[:taken]
            self._room -= taken
            left = left[taken:]
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing: everything is in its final place."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def whole(self) -> NewFile:
        """Return the file, with the checksums of its footer filled in. Call it once."""
        if self._room:
            self._parts[-1] = self._parts[-1][: -self._room]
        ending = self._cut(ENDING_BYTES)
        ending[:0] = self._cut(footer_bytes(ending, "new file") - ENDING_BYTES)
        write_checksums(self._parts, ending)
        return NewFile([*self._parts, ending], ending, self._size)

    def _cut(self, length: int) -> bytearray:
        """Remove and return the last bytes."""
        found = bytearray()
        while len(found) < length:
            part = self._parts.pop()
            kept = max(0, len(part) - (length - len(found)))
            found[:0] = part[kept:]
            if kept:
                self._parts.append(part[:kept])
        return found

"""A Parquet file that is made in memory: where its writer writes to, and what it is when it is whole.

It stays in the parts in which it was written. A stream of Arrow's would double its one buffer again and again, and on large files
the moving and the fresh pages of it took as much processor time as half of the encoding and compressing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.object_store.contract import Buffer
from ledger.parquet.footer_checksum import ENDING_BYTES, footer_bytes, write_checksums

SMALL_PART_BYTES = 16 * 1024
"""Less than this is joined with what comes before and after it: page headers, the pages of short columns."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """`ending`: its last part, which holds all of the footer."""

    parts: list[Buffer]
    ending: bytearray
    size: int

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


class FileSink:
    """A binary file for `pyarrow.PythonFile` to write to."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._small = bytearray()
        self._size = 0

    def write(self, data: Buffer) -> int:
        length = memoryview(data).nbytes
        if length < SMALL_PART_BYTES:
            self._small += data
        else:
            self._take_small()
            self._parts.append(bytes(data))  # no copy: it is bytes already
        self._size += length
        return length

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Everything is where it stays."""

    def close(self) -> None:
        """Nothing to let go."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def whole(self) -> NewFile:
        """The file, with the checksums of its footer filled in. Once."""
        self._take_small()
        ending = bytearray()
        while len(ending) < ENDING_BYTES or len(ending) < footer_bytes(ending, "new file"):
            ending[:0] = self._parts.pop()
        write_checksums(self._parts, ending)
        return NewFile([*self._parts, ending], ending, self._size)

    def _take_small(self) -> None:
        if self._small:
            self._parts.append(bytes(self._small))
            self._small.clear()

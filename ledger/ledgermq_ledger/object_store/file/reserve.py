"""Set room aside for a full disk: one preallocated file, given back to the disk when a small put
needs it.

    <root>/.reserve     4 KiB that say how large it is, then nothing but room; cut down to the 4 KiB
                        while it is given back

A full disk must not keep a cluster from being read, taken over and emptied: claims, heartbeats,
checkpoints and deletions need a few KiB. Other programs may have filled the disk, so watching the
free space is not enough. The file itself is the state, so any number of processes share it, and one
that knows nothing of it does no harm. Records may never use the room; Parquet files may use half of
it, because compaction is what frees segments. Deleting the file switches the reserve off until a
broker makes it again. Blocking: runs in threads. Knows no keys, fences or asyncio.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ledgermq.errors import StoreFull

NAME = ".reserve"
HEADER_BYTES = 4096
DISK_SHARE = 16
"""On a small disk the reserve takes at most this part of it."""
ROOM_FACTOR = 2
"""The reserve is filled again only if this many times its size is free, so that records have room,
too.
"""
FULL = (errno.ENOSPC, errno.EDQUOT)

_TEXT = "LedgerMQ keeps this room for a full disk, see docs/operations.md. Bytes: "

T = TypeVar("T")


class Reserve:
    def __init__(self, root: Path) -> None:
        self._path = root / NAME

    def keep(self, size_bytes: int) -> bool:
        """Make the file, or fill it again. Return False if it is given back and there is no room to
        fill it. Raises OSError.
        """
        if size_bytes == 0:
            self._path.unlink(missing_ok=True)
            return True
        disk = os.statvfs(self._path.parent)
        size = min(size_bytes, disk.f_blocks * disk.f_frsize // DISK_SHARE) // HEADER_BYTES * HEADER_BYTES
        found = self._size()
        if found is not None and found >= size:
            return True
        if size <= HEADER_BYTES or disk.f_bavail * disk.f_frsize < ROOM_FACTOR * size:
            return found is None or found > HEADER_BYTES
        return self._fill(size)

    def spend(self, step: Callable[[], T]) -> T:
        """Run `step`, with the reserve's room if necessary. Raises what it raises."""
        try:
            return step()
        except OSError as error:
            if error.errno not in FULL or not self._give_back():
                raise
            return (
                step()
            )  # also where another has just given it back: there is room now that the first try may not have had

    def spend_half(self, step: Callable[[], T], size_bytes: int) -> T:
        """Run `step`, but keep at least half of the reserve free. Raises StoreFull."""
        self._check_half(size_bytes)
        try:
            return step()
        except OSError as error:
            if error.errno not in FULL or self._wanted() < 2 * size_bytes or not self._give_back():
                raise
            self._check_half(size_bytes)
            return step()

    def check_untouched(self) -> None:
        """Raise StoreFull if only the reserve is left."""
        if self._is_given_back():
            raise StoreFull("no space is left on the disk but the reserve for deletions")

    def _check_half(self, size_bytes: int) -> None:
        if not self._is_given_back():
            return
        disk = os.statvfs(self._path.parent)
        if disk.f_bavail * disk.f_frsize - size_bytes < self._wanted() // 2:
            raise StoreFull("no space is left on the disk but the reserve for deletions")

    def _is_given_back(self) -> bool:
        size = self._size()
        return size is not None and size <= HEADER_BYTES

    def _size(self) -> int | None:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return None

    def _wanted(self) -> int:
        """Return the full size that the file states; 0 if there is none, or it is not LedgerMQ's."""
        try:
            with self._path.open("rb") as file:
                text = file.readline(HEADER_BYTES).decode(errors="replace").rstrip("\n")
        except OSError:
            return 0
        number = text.removeprefix(_TEXT)
        return int(number) if text.startswith(_TEXT) and number.isdecimal() else 0

    def _fill(self, size: int) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, f"{_TEXT}{size}\n".encode().ljust(HEADER_BYTES, b"\0"), 0)
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(descriptor, HEADER_BYTES)
            if error.errno in FULL:
                return False
            raise
        finally:
            os.close(descriptor)
        return True

    def _give_back(self) -> bool:
        """Give the reserve back, unless another process has done so. Return False if there is none."""
        if self._is_given_back():
            return True
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            os.ftruncate(descriptor, HEADER_BYTES)
            os.fsync(descriptor)  # some file systems free the room no sooner
        finally:
            os.close(descriptor)
        return True

"""Count the memory that calls of one broker hold, against a bound."""

from __future__ import annotations

import asyncio


class ByteBudget:
    """Bytes that may be held at once. They are taken before anything is queued; no call waits for
    them.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken = 0
        self.is_empty = asyncio.Event()
        """Set while nothing is held."""
        self.is_empty.set()

    def take(self, size_bytes: int) -> bool:
        """Take `size_bytes`; return False if there is no room now.

        A request larger than the whole budget is admitted when nothing else is held.
        """
        if not self.has_room(size_bytes):
            return False
        self.taken += size_bytes
        if self.taken:
            self.is_empty.clear()
        return True

    def has_room(self, size_bytes: int) -> bool:
        """Return whether `take` would take `size_bytes` now."""
        return not self.taken or self.taken + size_bytes <= self.bytes_max

    def give(self, size_bytes: int) -> None:
        self.taken -= size_bytes
        assert self.taken >= 0
        if not self.taken:
            self.is_empty.set()

"""Measure how fast one reader takes its answers: its standing, and how large its next answer should
be. Pure: the caller passes times in.
"""

from __future__ import annotations

from enum import IntEnum

from ledgermq.buffers import KIB, MIB
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX

LEAST_BYTES = 64 * KIB
"""The limit of an answer is never smaller than this. A single batch may exceed the limit."""
FIRST_BYTES = MIB
"""Size of a new reader's first answer. It doubles after every `GROW_AFTER` answers of that size
that the reader took quickly.
"""
GROW_AFTER = 2
QUICK_S = 0.1
SLOW_S = 1.0
"""A reader that takes longer than this for one answer is slow until it takes an answer in less
time.
"""
AIM_S = 0.5
"""A reader that is not fast gets as much as it takes in this time."""
FAST_AFTER_BYTES = 16 * MIB
"""More than the buffers between a broker and a client that reads nothing can hold: only a client
that does read takes this much.
"""


class Standing(IntEnum):
    """Known speed of a reader."""

    SLOW = 0
    NEW = 1
    FAST = 2


class AnswerPace:
    """`once`: the reader waits for a single answer, so its speed is not measured."""

    def __init__(self, *, once: bool = False) -> None:
        self.standing = Standing.NEW
        self.credit = 0
        """Bytes of consecutive answers that were taken quickly."""
        self._window = FRAME_PAYLOAD_BYTES_MAX if once else FIRST_BYTES
        self._grows_at = GROW_AFTER * FIRST_BYTES

    def room(self, asked: int, share: int) -> int:
        """Return how many bytes the next answer may have."""
        return min(asked, max(LEAST_BYTES, min(share, self._window)))

    def took(self, size_bytes: int, seconds: float) -> Standing:
        """Record how long an answer was in line; return the reader's standing from now on, which
        the caller sets.
        """
        self.credit = 0 if seconds >= SLOW_S else self.credit + size_bytes
        if seconds >= QUICK_S:
            self._window = max(LEAST_BYTES, min(self._window, int(size_bytes / seconds * AIM_S)))
            self._grows_at = self.credit + GROW_AFTER * self._window
        elif self.credit >= self._grows_at:
            self._window = min(2 * self._window, FRAME_PAYLOAD_BYTES_MAX)
            self._grows_at = self.credit + GROW_AFTER * self._window
        if seconds >= SLOW_S:
            return Standing.SLOW
        return Standing.FAST if self.credit >= FAST_AFTER_BYTES or self.standing is Standing.FAST else Standing.NEW

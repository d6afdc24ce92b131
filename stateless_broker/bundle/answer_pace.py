"""How fast one reader takes its answers: what its standing is, and how large its next answer should
be. Pure: the caller has the clock.
"""

from __future__ import annotations

from enum import IntEnum

from ledgermq.buffers import KIB, MIB
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX

LEAST_BYTES = 64 * KIB
"""Answers do not become smaller than this, though a single batch may be larger."""
FIRST_BYTES = MIB
"""The answer that a new reader gets; it doubles with every `GROW_AFTER` answers of its size that
were taken quickly.
"""
GROW_AFTER = 2
QUICK_S = 0.1
SLOW_S = 1.0
"""A reader that takes longer than this for one answer is slow until it takes one sooner."""
AIM_S = 0.5
"""A reader that is not quick gets as much as it takes in this time."""
FAST_AFTER_BYTES = 16 * MIB
"""Above what the buffers between a broker and a program that reads nothing hold: only who really
reads takes so much.
"""


class Standing(IntEnum):
    """What is known of a reader's speed."""

    SLOW = 0
    NEW = 1
    FAST = 2


class AnswerPace:
    """`once`: the reader gets one answer, for which it waits, so nothing is learned of it."""

    def __init__(self, *, once: bool = False) -> None:
        self.standing = Standing.NEW
        self.credit = 0
        """Bytes that were taken quickly, one answer after the other."""
        self._window = FRAME_PAYLOAD_BYTES_MAX if once else FIRST_BYTES
        self._grows_at = GROW_AFTER * FIRST_BYTES

    def room(self, asked: int, share: int) -> int:
        """Bytes for the next answer."""
        return min(asked, max(LEAST_BYTES, min(share, self._window)))

    def took(self, size_bytes: int, seconds: float) -> Standing:
        """An answer was in line for so long.

        The reader's standing from now on, which the caller sets.
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

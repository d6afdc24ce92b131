"""Following a ledger slot by slot, long after its slots may be gone: which segments count, and when
to look whether that can be believed.

A reader meets two surprises (design L7). A slot is *missing*: not written yet, or deleted. A
segment is *void*: really void, or put by a zombie into a slot that had been deleted. At a surprise
it looks at the newest checkpoint: for a void segment at once, for a missing one after a second
without progress, then ever more seldom. If that has trimmed past the first slot that was read since
the look before, or past the one that is read next, the fold is worth nothing any more: begin again
at that checkpoint and go on by offset.

What the fold calls valid, with all slots below it read, is durable for ever and may be shown. No
I/O and no clock: times are given.
"""

from __future__ import annotations

from ledger.format import ledgermq_format_pb2 as fmt
from ledger.log.fold import LedgerState

LOOK_AFTER_S = 1.0
LOOK_AFTER_S_MAX = 30.0


class Follower:
    """`state`: a fold that was believed by the rule of Recover, at the look that it began with.

    It belongs to the follower.
    """

    def __init__(self, state: LedgerState) -> None:
        self.state = state
        self._first = state.slot + 1
        """The first slot that was read since the last look, or is read next."""
        self._must_look = False
        self._look_at_s: float | None = None
        self._wait_s = LOOK_AFTER_S

    @property
    def next_slot(self) -> int:
        return self.state.slot + 1

    def take(self, index: fmt.SegmentIndex) -> bool:
        """The segment in `next_slot`; False: it is void, so look before anything behind it is read.
        Raises DataDamaged.
        """
        assert not self._must_look, "after a void segment the store has to be read first"
        self._look_at_s = None
        self._wait_s = LOOK_AFTER_S
        is_valid = self.state.apply(index)
        self._must_look = not is_valid
        return is_valid

    def miss(self, now_s: float) -> None:
        """There is nothing in `next_slot`."""
        if self._look_at_s is None:
            self._look_at_s = now_s + self._wait_s

    def is_look_due(self, now_s: float) -> bool:
        return self._must_look or (self._look_at_s is not None and now_s >= self._look_at_s)

    def look(self, trim_slot: int, now_s: float) -> bool:
        """The newest checkpoint, read just now, trims up to there.

        False: begin again at it, this follower is done.
        """
        if trim_slot > self._first:
            return False
        self._first = self.next_slot
        self._must_look = False
        if self._look_at_s is not None:
            self._wait_s = min(2 * self._wait_s, LOOK_AFTER_S_MAX)
            self._look_at_s = now_s + self._wait_s
        return True

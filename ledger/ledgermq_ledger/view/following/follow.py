"""Follow a ledger slot by slot, long after its slots may be gone: decide which segments count, and
when to check that they still do.

A reader meets two surprises (design L7). A slot is *missing*: not written yet, or deleted. A
segment is *void*: really void, or put by a zombie into a slot that had been deleted. At a surprise
the follower reads the newest checkpoint: for a void segment at once, for a missing one after a
second without progress, then less and less often. If the checkpoint has trimmed past the first slot
read since the previous look, or past the next one, the fold is worthless: begin again at that
checkpoint and continue by offset.

A segment that the fold calls valid, with all slots below it read, stays durable and may be shown.
No I/O and no clock: times are given.
"""

from __future__ import annotations

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.fold import LedgerState

LOOK_AFTER_S = 1.0
LOOK_AFTER_S_MAX = 30.0


class Follower:
    """`state`: a fold that passed the rule of Recover at the look that it began with.

    It belongs to the follower.
    """

    def __init__(self, state: LedgerState) -> None:
        self.state = state
        self._first = state.slot + 1
        """The first slot that was read since the last look at the checkpoint, or that is read next.
        """
        self._must_look = False
        self._look_at_s: float | None = None
        self._wait_s = LOOK_AFTER_S

    @property
    def next_slot(self) -> int:
        return self.state.slot + 1

    def take(self, index: fmt.SegmentIndex) -> bool:
        """Take the segment in `next_slot`. Return False if it is void: then look at the checkpoint
        before anything after it is read.

        Raises DataDamaged.
        """
        assert not self._must_look, "after a void segment the store has to be read first"
        self._look_at_s = None
        self._wait_s = LOOK_AFTER_S
        is_valid = self.state.apply(index)
        self._must_look = not is_valid
        return is_valid

    def miss(self, now_s: float) -> None:
        """Note that `next_slot` is empty."""
        if self._look_at_s is None:
            self._look_at_s = now_s + self._wait_s

    def is_look_due(self, now_s: float) -> bool:
        return self._must_look or (self._look_at_s is not None and now_s >= self._look_at_s)

    def look(self, trim_slot: int, now_s: float) -> bool:
        """Note the trim slot of the newest checkpoint, read just now.

        Return False if this follower is done: begin again at that checkpoint.
        """
        if trim_slot > self._first:
            return False
        self._first = self.next_slot
        self._must_look = False
        if self._look_at_s is not None:
            self._wait_s = min(2 * self._wait_s, LOOK_AFTER_S_MAX)
            self._look_at_s = now_s + self._wait_s
        return True

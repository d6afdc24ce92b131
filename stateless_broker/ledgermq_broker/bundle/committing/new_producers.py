"""Bound how fast each principal brings new producers to a bundle.

A ledger remembers a number of producers, and forgets the one that was silent for longest when another one
comes. So a principal that brings ever new ones would push out producers that others use at present. Here it may
bring half of what is remembered at once, and as many again within `REFILL_S`. So no producer that was active in
the last five minutes is pushed out by one principal alone, and no principal is refused for good.

The pace is kept in memory, for one term of the bundle: after a takeover each principal has its half again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ledgermq.errors import QuotaExceeded
from ledgermq.runtime.token_bucket import TokenBucket
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import Batch

LIMIT = "new_producers"
SHARE = 2
"""A principal may bring this part of the producers that a ledger remembers at once: one half."""
REFILL_S = 300.0
RETRY_MS_MIN, RETRY_MS_MAX = 20, 5000
KEPT_MAX = 10_000
"""Principals whose pace is kept; those that may bring their half need no entry."""


class NewProducers:
    """`remembered_max`: how many producers the ledger remembers. `is_known(id, partition)`: whether it does. `now_s`:
    the loop's clock.
    """

    def __init__(
        self, remembered_max: int, is_known: Callable[[bytes, PartitionId], bool], now_s: Callable[[], float]
    ) -> None:
        self.most = max(1, remembered_max // SHARE)
        self._is_known = is_known
        self._now_s = now_s
        self._paces: dict[int, TokenBucket] = {}

    def admit(self, batches: Sequence[Batch]) -> None:
        """Count the new producers among these batches, or raise QuotaExceeded if their principal brought too many.

        Any number passes at once while the principal is below its bound, as with quotas: otherwise a large frame
        would never pass.
        """
        new = [
            session.principal
            for batch in batches
            if (session := batch.producer) is not None
            and session.principal
            and session.sequence == 0
            and not self._is_known(session.id, batch.key)
        ]
        for principal in set(new):
            self._check(principal)
        for principal in new:
            self._paces[principal].take(1, self._now_s())

    def spent(self, principal: int) -> int:
        """Return how many producers a principal brought lately, of those that count at present."""
        pace = self._paces.get(principal)
        return 0 if pace is None else math.ceil(self.most - pace.level(self._now_s()))

    def _check(self, principal: int) -> None:
        now_s = self._now_s()
        pace = self._paces.get(principal)
        if pace is None:
            self._make_room(now_s)
            pace = self._paces[principal] = TokenBucket(self.most / REFILL_S, now_s, self.most)
        level = pace.level(now_s)
        if level > 0:
            return
        wait_ms = 1000 * (1 - level) / pace.per_s
        raise QuotaExceeded(
            f"this principal brought {math.ceil(self.most - level)} new producers to this bundle lately, counted in"
            f" each partition; {self.most} may come at once, and as many again within {REFILL_S:.0f} s: keep producers"
            " open, instead of opening one for a few records. Nothing was accepted; other principals go on",
            limit=LIMIT,
            retry_after_ms=round(min(RETRY_MS_MAX, max(RETRY_MS_MIN, wait_ms))),
        )

    def _make_room(self, now_s: float) -> None:
        """Forget principals that count for nothing any longer, and if that is not enough the least one."""
        if len(self._paces) < KEPT_MAX:
            return
        self._paces = {each: pace for each, pace in self._paces.items() if pace.level(now_s) < pace.burst}
        while len(self._paces) >= KEPT_MAX:
            del self._paces[max(self._paces, key=lambda each: self._paces[each].level(now_s))]

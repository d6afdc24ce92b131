"""Decide when something that is kept for a time is old enough to be removed: the one rule for
everything that a wall clock expires (decision 30).

    begin   the later of two clocks     `stamp_ms`: ours and the store's
    end     the earlier of two clocks   `due`, `earlier_ms`: ours and the store's

A machine's clock may be wrong by any amount, and another machine may judge what this one has
stamped. Taken together, the two rules keep a thing at least for its time by the store's clock,
however wrong the clocks of machines are; a wrong one can only keep it longer. Objects of the store
need no rule: both their dates and the time that they are compared with are the store's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectStore

T = TypeVar("T")


class TwoClocks:
    """This machine's clock and the store's.

    `learn` costs no request, so a stamp does not either. An end is judged by a new reading.
    """

    def __init__(self, store: ObjectStore, sources: Sources) -> None:
        self._store = store
        self._sources = sources
        self._learned: tuple[int, float] | None = None

    def learn(self, store_ms: int, at_s: float) -> None:
        """The store's clock showed `store_ms` at `at_s`, by the loop's clock, or later."""
        self._learned = store_ms, at_s

    def stamp_ms(self) -> int:
        """Return the time now by the later clock: the begin of a retention.

        This machine's clock alone counts until `learn` was called.
        """
        ours_ms = self._sources.now_ms()
        if self._learned is None:
            return ours_ms
        store_ms, at_s = self._learned
        return max(ours_ms, store_ms + round((asyncio.get_running_loop().time() - at_s) * 1000))

    def our_ms(self) -> int:
        """Return the time now by this machine's clock alone; use it only to decide whether the
        store's clock is worth a request.
        """
        return self._sources.now_ms()

    async def earlier_ms(self) -> int:
        """Return the time now by the earlier clock. One request. Raises the store's errors."""
        return min(self._sources.now_ms(), await self._store.store_time_ms())

    async def due(self, judge: Callable[[int], Awaitable[T]]) -> T:
        """Return what `judge(now_ms)` finds due by both clocks; the store's time is read only if
        this machine's clock finds anything.
        """
        found = await judge(self.our_ms())
        return await judge(await self.earlier_ms()) if found else found

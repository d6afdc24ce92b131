"""Estimate the store's time from below: the clock by which timed messages are delivered (W13).

A message must not be delivered early, and clocks of machines may be wrong by any amount. So only the
store's time counts. An answer that shows it proves that this time had come when the answer arrived;
from then on it is carried by the monotonic clock, less the bound of that clock's drift. The highest
bound of all readings counts. Dates of stores may be cut to whole seconds; the readings of some
heartbeats make up for that.
"""

from __future__ import annotations

import asyncio

from ledgermq_ledger.object_store.contract import ObjectStore

DRIFT_PPM = 500
"""How far time services slew monotonic clocks, at most."""
EXACT_US_MAX = 1_000_000
READING_S_MAX = 3600.0
"""Age of the newest reading at which a due message is worth a request."""


class StoreClock:
    """Heartbeats give readings without a request (`learn`)."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._zero_us: int | None = None
        """The bound at the loop's time 0. The bounds of all readings rise equally, so the highest stays it."""
        self._read_s = 0.0

    def learn(self, store_ms: int, at_s: float) -> None:
        """Note that the store's clock showed `store_ms`, or later, at `at_s` by the loop's clock."""
        zero_us = store_ms * 1000 - _carried_us(at_s)
        self._zero_us = zero_us if self._zero_us is None else max(self._zero_us, zero_us)
        self._read_s = at_s

    def now_us(self) -> int | None:
        """Return a time that the store's clock has reached. None before the first reading. Never goes back."""
        if self._zero_us is None:
            return None
        return self._zero_us + _carried_us(asyncio.get_running_loop().time())

    def wait_s(self, until_us: int) -> float:
        """Return how long to wait before `now_us` is compared with a time again; 0.0 if it has reached this
        time, or if there is no reading.

        A long wait ends early: later readings may raise the bound meanwhile.
        """
        now_us = self.now_us()
        if now_us is None or until_us <= now_us:
            return 0.0
        wait_us = until_us - now_us + 1
        return wait_us / (1_000_000 if wait_us > EXACT_US_MAX else 1_000_000 - DRIFT_PPM)

    async def read(self) -> int:
        """Return `now_us`; read the store's clock first, if there is no reading of the last hour. Raises
        the store's errors.
        """
        now_us = self.now_us()
        if now_us is not None and asyncio.get_running_loop().time() - self._read_s <= READING_S_MAX:
            return now_us
        store_ms = await self._store.store_time_ms()
        self.learn(store_ms, asyncio.get_running_loop().time())
        now_us = self.now_us()
        assert now_us is not None
        return now_us


def _carried_us(elapsed_s: float) -> int:
    return int(elapsed_s * (1_000_000 - DRIFT_PPM))

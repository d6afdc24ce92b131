"""Let calls begin in turns of their callers, so that a flood of one of them delays its own calls.

    a call begins       in the turn of its caller, if that one has a place; else it waits, and nothing is done for it
    the next one        begins in the next turn of the event loop at the earliest. While the processor is busy with
                        what has begun, these turns are long: so the calls that have begun stay few, and each is short
    one caller          may have as many calls under way as places are free (`is_above_share`)

So a call waits for one call of each other caller, however many of these wait. Calls that wait for something other than
the processor take no time of it: a slow store bounds nothing here but the places.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledgermq.errors import ResourceExhausted
from ledgermq.runtime.ports.shares import is_above_share

RETRY_AFTER_MS = 1000


class Turns:
    """`places`: so many calls may be under way at once, of all callers together."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.under_way = 0
        self._own: Counter[str] = Counter()
        self._waiting: OrderedDict[str, dict[asyncio.Future[None], None]] = OrderedDict()
        """By caller, in the order of their turns; of each in the order in which its calls came."""
        self._is_due = False
        """Whether the next call begins in the next turn of the event loop."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def one(self, caller: str, wait_s: float) -> AsyncIterator[Place]:
        """Wait for a turn, and hold a place for the block. Raises ResourceExhausted after `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                await self._begin(caller)
        except TimeoutError:
            raise ResourceExhausted(
                f"{caller} has {self._own[caller]} calls under way here, and this one has waited {wait_s:g} s for its"
                " turn: retry later, and send fewer at a time",
                retry_after_ms=RETRY_AFTER_MS,
            ) from None
        place = Place(self, caller)
        try:
            yield place
        finally:
            place.leave()

    async def _begin(self, caller: str) -> None:
        if not self._waiting and not self._is_due and self._has_place(caller):
            self._take(caller)
            return
        come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, {})[come] = None
        self._look_soon()
        try:
            await come
        except asyncio.CancelledError:
            if come.cancelled():
                self._forget(caller, come)
            else:  # the turn came in the same moment
                self.ended(caller)
            raise

    def ended(self, caller: str) -> None:
        """Give a place back."""
        self.under_way -= 1
        self._own[caller] -= 1
        assert self._own[caller] >= 0, "no caller gives back more places than it took"
        if not self._own[caller]:
            del self._own[caller]
        if self._waiting:
            self._look_soon()

    def _has_place(self, caller: str) -> bool:
        return not is_above_share(self._own[caller], 1, self.places - self.under_way)

    def _take(self, caller: str) -> None:
        self.under_way += 1
        self._own[caller] += 1
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Let the next one begin: the first call of the first caller that has a place."""
        self._is_due = False
        for caller, line in self._waiting.items():
            come = next((one for one in line if not one.cancelled()), None)
            if come is not None and self._has_place(caller):
                break
        else:
            return
        self._forget(caller, come)
        if caller in self._waiting:
            self._waiting.move_to_end(caller)
        self._take(caller)
        come.set_result(None)

    def _forget(self, caller: str, come: asyncio.Future[None]) -> None:
        line = self._waiting[caller]
        del line[come]
        if not line:
            del self._waiting[caller]


class Place:
    """What one call holds."""

    def __init__(self, turns: Turns, caller: str) -> None:
        self._turns: Turns | None = turns
        self._caller = caller

    def leave(self) -> None:
        """Give the place back before the call ends, because it only waits from now on. May be called again."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.ended(self._caller)

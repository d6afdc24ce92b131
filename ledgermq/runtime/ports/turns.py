"""Let calls begin in turns of their callers, so that a flood of one of them delays its own calls.

    a call begins       in the turn of its caller; else it waits, and nothing is done for it
    the next one        begins in the next turn of the event loop at the earliest. While the processor is busy with
                        what has begun, these turns are long: so the calls that have begun stay few, and each is short
    a long one          takes turns between its parts, too (`give_way`)
    one that waited     for records, say, goes on in a turn of its caller (`go_on_in_turn`)
    one caller          may have as many places as are free (`is_above_share`): calls under way, or what they take

So a call waits for one call of each other caller, however many of these wait. Where no call waits, the next one begins
at once; so does each of a caller that makes few. Calls that wait for something other than the processor take no time
of it: a slow store bounds nothing here but the places.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Protocol

from ledgermq.errors import ResourceExhausted
from ledgermq.runtime.ports.shares import is_above_share

RETRY_AFTER_MS = 1000
LONG_TURN_S = 0.002
"""A turn of the event loop that takes longer lets more calls begin, one for each such time: it may be long by work
that did not begin here, which must not starve them.
"""
PASSED_MAX = 200
"""What waits begins after so many turns of the event loop, even if calls have come all the time."""
ACTIVE_S = 10.0
AGAIN_S = 0.1
"""While one caller calls alone, the time of its last call is as exact as this."""
Line = tuple[bool, str]
"""Calls that wait, of one caller: new ones, or parts of calls."""


class Worker(Protocol):
    """What works for a caller, which may become known later."""

    @property
    def takes_turns_as(self) -> str: ...


class Turns:
    """`places`: so many may be taken at once, by all callers together; None: there is no bound. `at_once_max`: so many
    calls begin in one turn of the event loop at most, however long that was. `free_per_s`: so many calls of one caller
    in a second begin at once. `quiet_turns`: new calls that wait begin after so many turns of the event loop in which
    none came, because further ones may stand in a line before this one, which has no turns. Not while all calls are of
    one caller.
    """

    def __init__(
        self, places: int | None = None, at_once_max: int = 1, *, free_per_s: int = 0, quiet_turns: int = 0
    ) -> None:
        self.places = places
        self.under_way = 0
        """Places that are taken."""
        self._at_once_max = at_once_max
        self._free_per_s = free_per_s
        self._free: dict[str, int] = {}
        """Calls in the second that has begun at `_second_s`."""
        self._seen: dict[str, float] = {}
        """When callers have last called, the latest at the end. Kept only for calls that are noted."""
        self._latest = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._quiet_turns = self._quiet = quiet_turns
        self._passed = 0
        """Turns of the event loop that have passed because they were not quiet, since a call began."""
        self._own: Counter[str] = Counter()
        self._waiting: OrderedDict[Line, dict[asyncio.Future[None], int]] = OrderedDict()
        """In the order of their turns; of each in the order in which its calls came, with their places."""
        self._is_due = False
        """Whether the next call begins in the next turn of the event loop."""
        self._due_s = self._second_s = float("-inf")

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def one(self, caller: str, wait_s: float) -> AsyncIterator[Place]:
        """Wait for a turn, and hold a place for the block. Raises ResourceExhausted after `wait_s`."""
        await self.begin(caller, 1, wait_s)
        place = Place(self, caller)
        try:
            yield place
        finally:
            place.leave()

    async def begin(self, caller: str, places: int = 0, wait_s: float | None = None, *, is_new: bool = False) -> None:
        """Wait for a turn, and take places, which have to be given back (`ended`). `wait_s`: None for as long as it
        takes. Raises ResourceExhausted after it.
        """
        if not self.at_once(caller, places, is_new=is_new):
            await self._turn((is_new, caller), places, wait_s)

    async def go_on(self, caller: str) -> None:
        """Wait for a turn of a part of a call, after the present turn of the event loop in any case."""
        await self._turn((False, f"parts of calls of {caller}"), 0)

    def at_once(self, caller: str, places: int = 0, *, is_new: bool = False) -> bool:
        """Begin if the caller has begun few in this second and none of its calls waits, or if no call waits and none
        has begun in this turn of the event loop. Return whether it has begun. `is_new`: a call that was noted (`came`),
        not a part of one.
        """
        if places and not self._has_places(caller, places):
            return False
        if self._free_per_s and self._is_free(caller) and not (self._waiting and (is_new, caller) in self._waiting):
            if places:
                self._count(caller, places)
            return True
        if self._waiting or self._is_due or (is_new and self._is_shared()):
            return False
        self._take(caller, places)
        return True

    async def _turn(self, line: Line, places: int, wait_s: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        come: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(line, {})[come] = places
        self._look_soon()
        timer = None if wait_s is None else loop.call_later(wait_s, self._too_late, line, come, wait_s)
        try:
            await come
        except asyncio.CancelledError:
            if come.cancelled():
                self._forget(line, come)
                self._look_soon()  # one behind it may have what it lacked
            elif come.exception() is None:  # the turn came in the same moment, not the end of its wait
                self.ended(line[1], places)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _too_late(self, line: Line, come: asyncio.Future[None], wait_s: float) -> None:
        """End the wait of a call, if its turn has not come."""
        if come.done():
            return
        self._forget(line, come)
        self._look_soon()  # one behind it may have what it lacked
        _, caller = line
        holds = f"has {self._own[caller]} calls under way here, and " if self.places is not None else ""
        come.set_exception(
            ResourceExhausted(
                f"{caller} {holds}sends more than this process begins in its turns; this call has waited {wait_s:g} s"
                " for one: retry later, and send fewer at a time",
                retry_after_ms=RETRY_AFTER_MS,
            )
        )

    def came(self, caller: str) -> None:
        """Note that a call has come: others may be behind it."""
        self._quiet = 0
        now_s = (self._loop or self._begin()).time()
        seen = self._seen
        if caller == self._latest and now_s - seen[caller] < AGAIN_S:
            return
        seen.pop(caller, None)
        seen[caller], self._latest = now_s, caller
        while now_s - seen[first := next(iter(seen))] > ACTIVE_S:
            del seen[first]

    def _is_shared(self) -> bool:
        """Return whether more than one caller has called lately."""
        return len(self._seen) > 1

    def ended(self, caller: str, places: int = 1) -> None:
        """Give places back."""
        if places:
            self.under_way -= places
            self._own[caller] -= places
            assert self._own[caller] >= 0, "no caller gives back more places than it took"
            if not self._own[caller]:
                del self._own[caller]
        if self._waiting:
            self._look_soon()

    def _has_places(self, caller: str, places: int) -> bool:
        if not places or self.places is None:
            return True
        return not is_above_share(self._own[caller], places, self.places - self.under_way)

    def _is_free(self, caller: str) -> bool:
        now_s = (self._loop or self._begin()).time()
        if now_s - self._second_s >= 1:
            self._second_s = now_s
            self._free.clear()
        made = self._free[caller] = self._free.get(caller, 0) + 1
        return made <= self._free_per_s

    def _begin(self) -> asyncio.AbstractEventLoop:
        """Return the event loop, which is known from the first call on."""
        self._loop = asyncio.get_running_loop()
        return self._loop

    def _take(self, caller: str, places: int) -> None:
        if places:
            self._count(caller, places)
        self._look_soon()

    def _count(self, caller: str, places: int) -> None:
        self.under_way += places
        self._own[caller] += places

    def _look_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            loop = self._loop or self._begin()
            self._due_s = loop.time()
            loop.call_soon(self._look)

    def _look(self) -> None:
        """Let the next ones begin."""
        self._is_due = False
        if not self._waiting:
            return
        is_quiet = self._quiet >= self._quiet_turns or self._passed >= PASSED_MAX
        self._quiet += 1
        self._passed = 0 if is_quiet else self._passed + 1
        long_turns = (asyncio.get_running_loop().time() - self._due_s) / LONG_TURN_S
        for _ in range(min(self._at_once_max, 1 + int(long_turns))):
            if not self._let_in(is_quiet):
                break
        if self._waiting and not is_quiet:
            self._look_soon()

    def _let_in(self, is_quiet: bool) -> bool:
        """Let the first call of the first line begin that has places; return whether there is one."""
        for key, line in self._waiting.items():
            come = next((one for one in line if not one.cancelled()), None)
            is_new, caller = key
            if come is not None and (is_quiet or not is_new) and self._has_places(caller, line[come]):
                break
        else:
            return False
        places = line[come]
        self._forget(key, come)
        if key in self._waiting:
            self._waiting.move_to_end(key)
        self._take(caller, places)
        come.set_result(None)
        return True

    def _forget(self, key: Line, come: asyncio.Future[None]) -> None:
        line = self._waiting[key]
        del line[come]
        if not line:
            del self._waiting[key]


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


_OWN: ContextVar[tuple[Turns, Worker] | None] = ContextVar("own turns", default=None)


def work_in_turns(turns: Turns, worker: Worker) -> None:
    """Let what follows in this task, and in tasks that it starts, give way in turns of the worker's caller."""
    _OWN.set((turns, worker))


async def go_on_in_turn() -> None:
    """Go on in the turn of the caller, after a wait that may have ended for many calls at once. These have turns apart
    from those of its new calls, and of parts of calls. A broker, and what is no call, goes on at once.
    """
    own = _OWN.get()
    if own is not None and (caller := own[1].takes_turns_as):
        await own[0].begin(f"woken calls of {caller}")


async def give_way() -> None:
    """Let others go on between two parts of a long call, and wait for the next turn of its caller. Parts of calls have
    turns apart from those of calls that begin, so that a call which waits for places holds up none that has them.
    """
    own = _OWN.get()
    if own is None:
        await asyncio.sleep(0)
    else:
        turns, worker = own
        await turns.go_on(worker.takes_turns_as)

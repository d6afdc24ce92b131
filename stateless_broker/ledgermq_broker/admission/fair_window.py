"""Bound what principals have in service at a broker while several of them send, so that what more they send
waits where they take turns.

A frame of batches is in service from its turn until its batches are durable. How much a broker can have
in service before frames only wait longer depends on its store and its processor, so it is measured: the
bytes that became durable lately, times `within_s`. Then a frame is in service for about that time. A
principal that has nothing in service enters at once; the others enter in order of their start times
(`fair_queue`), so they get the same bytes. While only one principal sends, nothing waits here. So nothing
is lost where the bound is too low for a store, except while principals compete.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Sequence
from itertools import count

from ledgermq.buffers import MIB
from ledgermq.errors import ResourceExhausted
from ledgermq_broker.bundle.shared.fair_queue import StartTimes

ACTIVE_S = 1.0
"""How long a principal counts as one that sends, after its last frame."""
MEASURED_S = 0.5
BYTES_MIN = 4 * MIB
"""May be in service at least, however little became durable lately: the store may have been away."""
WAIT_S_MAX = 5.0
"""A frame that has waited for so long is refused, so that its client gets an answer."""
RETRY_AFTER_MS = 500


class FairWindow:
    """One for all streams of a broker. `within_s`: how long a frame may be in service, about."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._held: Counter[str] = Counter()
        self._held_bytes = 0
        self._seen_s: dict[str, float] = {}
        """When each principal sent its last frame, the latest at the end."""
        self._durable: deque[tuple[float, int]] = deque()
        self._durable_bytes = 0
        self._waiting: list[tuple[int, int, str, int, asyncio.Future[None]]] = []
        """A heap: start, number of arrival, principal, bytes, and what is done when the turn has come."""
        self._starts = StartTimes()
        self._numbers = count()

    async def enter(self, sender: str, size_bytes: int) -> None:
        """Wait until a frame may be served. Frames of one sender come in order. `left` has to follow.

        Raises ResourceExhausted after `WAIT_S_MAX`.
        """
        now_s = self._now_s()
        self._seen_s.pop(sender, None)
        self._seen_s[sender] = now_s
        if not self._held[sender] or (not self._waiting and self._has_room(size_bytes)):
            self._take(sender, size_bytes)
            return
        come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        start = self._starts.of(sender, size_bytes)
        heapq.heappush(self._waiting, (start, next(self._numbers), sender, size_bytes, come))
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await come
        except (TimeoutError, asyncio.CancelledError) as error:
            if not come.cancelled():  # the turn came in the same moment
                self._give(sender, size_bytes)
            self._let_in()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise ResourceExhausted(
                f"a frame of {size_bytes} bytes has waited {WAIT_S_MAX:g} s for its turn among those of other"
                " principals",
                retry_after_ms=RETRY_AFTER_MS,
            ) from None

    def left(self, sender: str, size_bytes: int, served: Sequence[asyncio.Future[int]]) -> None:
        """Note that a frame is no longer in service when all of `served` are done."""
        waiting = len(served)

        def done(_: object) -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                self._measure(size_bytes)
                self._give(sender, size_bytes)

        if not served:
            self._give(sender, size_bytes)
        for future in served:
            future.add_done_callback(done)

    @property
    def limit_bytes(self) -> float:
        return max(BYTES_MIN, self._durable_bytes / MEASURED_S * self._within_s)

    def _has_room(self, size_bytes: int) -> bool:
        return not self._is_shared() or self._held_bytes + size_bytes <= self.limit_bytes

    def _is_shared(self) -> bool:
        """Return whether more than one principal sends."""
        now_s = self._now_s()
        while self._seen_s and (first := next(iter(self._seen_s))) and now_s - self._seen_s[first] > ACTIVE_S:
            del self._seen_s[first]
        return len(self._seen_s) > 1

    def _take(self, sender: str, size_bytes: int) -> None:
        self._held[sender] += size_bytes
        self._held_bytes += size_bytes

    def _give(self, sender: str, size_bytes: int) -> None:
        self._held[sender] -= size_bytes
        self._held_bytes -= size_bytes
        if not self._held[sender]:
            del self._held[sender]
        self._let_in()

    def _let_in(self) -> None:
        """Let those enter whose turn has come, and forget those that no longer wait."""
        while self._waiting:
            start, _, following, next_bytes, come = self._waiting[0]
            if not come.done():
                if self._held[following] and not self._has_room(next_bytes):
                    return
                self._take(following, next_bytes)
                come.set_result(None)
            heapq.heappop(self._waiting)
            self._starts.taken(start)
        self._starts.clear()

    def _measure(self, size_bytes: int) -> None:
        now_s = self._now_s()
        self._durable.append((now_s, size_bytes))
        self._durable_bytes += size_bytes
        while now_s - self._durable[0][0] > MEASURED_S:
            self._durable_bytes -= self._durable.popleft()[1]

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

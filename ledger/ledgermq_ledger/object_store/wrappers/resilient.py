"""`ResilientStore`: bound the requests in flight, and retry what is safe to retry.

Reads, lists, deletes and fences are retried with back-off and jitter after StoreUncertain and
StoreThrottled. Puts are sent once: `settle` finds out whether one that failed has landed. Puts and
all other requests are admitted separately, so many readers cannot delay a put. A request that
pauses between two tries holds no place.

The retry loop is not a library's: the pause draws from the injected randomness and respects the
store's own wish, and a list resumes after the last key that it returned. A library would only save
the `for`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeVar

from ledgermq.errors import ResourceExhausted
from ledgermq.runtime.backoff import backoff_s
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore, StoreUncertain
from ledgermq_ledger.object_store.wrappers.wrapper import PUTS, StoreWrapper

IN_FLIGHT_MAX = 64
BYTES_IN_FLIGHT_MAX = 256 << 20
WAITING_MAX = 10_000
TRIES_MAX = 8
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 5.0
RETRY_AFTER_MS = 200

T = TypeVar("T")


class ResilientStore(StoreWrapper):
    """Admits `in_flight_max` requests and `bytes_in_flight_max` bytes of puts, and as many of all
    other requests.

    An operation that fails TRIES_MAX times raises its last error; one that finds WAITING_MAX others
    waiting raises ResourceExhausted.
    """

    def __init__(
        self,
        inner: ObjectStore,
        sources: Sources,
        in_flight_max: int = IN_FLIGHT_MAX,
        bytes_in_flight_max: int = BYTES_IN_FLIGHT_MAX,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        super().__init__(inner)
        self._random = sources.random
        self._puts = Admission(in_flight_max, bytes_in_flight_max, waiting_max)
        self._others = Admission(in_flight_max, bytes_in_flight_max, waiting_max)

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        if operation in PUTS:
            async with self._puts.admit(bytes_known):
                return await step()
        tries = 0
        while True:
            try:
                async with self._others.admit(bytes_known):
                    return await step()
            except StoreUncertain as error:
                tries += 1
                await self._pause(tries, error)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        tries = 0
        while True:
            try:
                # Lists are few and their callers slow: they hold no place, each only a page at a
                # time.
                async for info in self.inner.list(prefix, start_after):
                    start_after, tries = info.key, 0
                    yield info
                return
            except StoreUncertain as error:
                tries += 1
                await self._pause(tries, error)

    async def _pause(self, tries: int, error: StoreUncertain) -> None:
        if tries >= TRIES_MAX:
            raise error
        pause_s = backoff_s(tries, PAUSE_FIRST_S, PAUSE_MAX_S, self._random)
        wished_s = min(PAUSE_MAX_S, (error.retry_after_ms or 0) / 1000)
        await asyncio.sleep(max(pause_s, wished_s))


class Admission:
    """Bounds the requests, and their bytes, that are in flight at the same time.

    Invariants: never more than `requests_max`; never more than `bytes_max`, except for a single
    request that is larger. Requests are served in order of arrival, so small ones never overtake a
    large one without end. Never more than `waiting_max` wait; the next one is refused at once.
    """

    def __init__(self, requests_max: int, bytes_max: int, waiting_max: int) -> None:
        assert requests_max > 0
        assert bytes_max > 0
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._waiting_max = waiting_max
        self._requests = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def admit(self, size: int) -> AbstractAsyncContextManager[None]:
        """Wait for a place, which the context holds.

        Raises ResourceExhausted if too many requests wait already; then nothing was taken.
        """
        return _Place(self, min(size, self._bytes_max))

    async def enter(self, size: int) -> None:
        if not self._waiting and self._has_room(size):
            self._take(size)
            return
        if len(self._waiting) >= self._waiting_max:
            raise ResourceExhausted(
                "too many requests wait for the object store; retry later", retry_after_ms=RETRY_AFTER_MS
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # admitted in the same step in which this call was cancelled
                self._requests -= 1
                self._bytes -= size
            with suppress(ValueError):
                self._waiting.remove((size, turn))
            self._admit_waiting()
            raise

    def leave(self, size: int) -> None:
        self._requests -= 1
        self._bytes -= size
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._take(size)
                turn.set_result(None)

    def _has_room(self, size: int) -> bool:
        return self._requests < self._requests_max and self._bytes + size <= self._bytes_max

    def _take(self, size: int) -> None:
        self._requests += 1
        self._bytes += size


class _Place(AbstractAsyncContextManager[None]):
    """A class, not a generator, for speed: every request to the store takes one."""

    __slots__ = ("_admission", "_size")

    def __init__(self, admission: Admission, size: int) -> None:
        self._admission = admission
        self._size = size

    async def __aenter__(self) -> None:
        await self._admission.enter(self._size)

    async def __aexit__(self, *_: object) -> None:
        self._admission.leave(self._size)
